"""Finds stop strings in text that arrives in pieces. Knows nothing about tokens."""

from __future__ import annotations

from collections.abc import Iterable


class StopStrings:
    """One sequence's stop strings, and as much of the end of its text as a stop string may still begin in."""

    __slots__ = ("_max_tail", "_stops", "_tail")

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)  # an empty one would match before the first token
        self._max_tail = max(map(len, self._stops), default=1) - 1  # characters
        self._tail = ""

    def find(self, text: str, *, only_at_end: bool = False) -> int | None:
        """Look for a stop string that `text`, appended to what came before, completes.

        Args:
            only_at_end: a stop string must end where `text` ends.
        Returns: how many characters of `text` stand after the stop string that ends first; None if there is none.
        """
        if not self._stops or not text:
            return None
        seen = self._tail + text
        ends = [end for stop in self._stops if (end := self._end(stop, seen, only_at_end)) is not None]
        if ends:
            return len(seen) - min(ends)
        self._tail = seen[-self._max_tail :] if self._max_tail else ""
        return None

    def _end(self, stop: str, seen: str, only_at_end: bool) -> int | None:
        """Where in `seen` the first `stop` ends that is not wholly in the tail."""
        if only_at_end:
            return len(seen) if seen.endswith(stop) else None
        start = seen.find(stop, max(len(self._tail) - len(stop) + 1, 0))
        return None if start < 0 else start + len(stop)
