"""The text that these routes show: without special tokens, and ending before a stop string, no piece of which is shown.

Text that may be the beginning of a stop string is held back until it is known not to be one. Knows nothing about tokens
but their texts.
"""

from __future__ import annotations

from collections.abc import Sequence


class VisibleText:
    """Pieces of one sequence's text go in, and what may be shown comes out."""

    __slots__ = ("_held", "_stops", "found_stop")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held: list[tuple[str, bool]] = []  # texts that may be the beginning of a stop string; True: special
        self.found_stop = False

    def push(self, text: str, *, special: bool, last: bool) -> str:
        """What can be shown now that `text` has come.

        Args:
            special: the text of a special token; it takes part in stop strings, and is never shown.
            last: nothing comes after it, so nothing is held back.
        """
        if not self._stops:
            return "" if special else text
        self._held.append((text, special))
        seen = "".join(held for held, _ in self._held)
        start = self._start_of_stop(seen, len(seen) - len(text), special)
        if start is not None:
            self.found_stop = True
            return self._release(start)
        return self._release(len(seen) if last else len(seen) - self._num_open(seen))

    def _start_of_stop(self, seen: str, num_old: int, special: bool) -> int | None:
        """Where the stop string begins that ends first, the longest of those that end there."""
        found: list[tuple[int, int]] = []  # end, start
        for stop in self._stops:
            if special:  # as nothing of a special token is shown, a stop string may not end inside it
                start = len(seen) - len(stop) if seen.endswith(stop) else -1
            else:
                start = seen.find(stop, max(num_old - len(stop) + 1, 0))
            if start >= 0:
                found.append((start + len(stop), start))
        return min(found)[1] if found else None

    def _num_open(self, seen: str) -> int:
        """How many characters at the end may begin a stop string."""
        return max(
            next(size for size in range(min(len(stop) - 1, len(seen)), -1, -1) if seen.endswith(stop[:size]))
            for stop in self._stops
        )

    def _release(self, num_characters: int) -> str:
        """Take that many characters from what is held; those that are not special are shown."""
        shown: list[str] = []
        kept: list[tuple[str, bool]] = []
        for text, special in self._held:
            if not special:
                shown.append(text[:num_characters])
            if len(text) > num_characters:
                kept.append((text[num_characters:], special))
            num_characters = max(num_characters - len(text), 0)
        self._held = kept
        return "".join(shown)
