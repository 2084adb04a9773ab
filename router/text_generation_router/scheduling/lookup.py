"""Guesses the next tokens of a text that repeats itself: what followed its last few tokens when they came before.

Answers about a document, code that is edited and lists in JSON repeat much of their prompt, word for word. No model is
needed to guess: the step that computes the next token computes the guesses beside it, and keeps those that sampling
gives too.

Knows one sequence's token ids; knows nothing about steps or blocks.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceABC

# Tokens that must have come before in the same order. Two of them find more, most of it by chance.
_LENGTH = 3
_KEY_MASK = (1 << 32 * _LENGTH) - 1
# Tokens of the prompt that are looked through, the last ones: 3 ms of work, once, and about a megabyte.
_LOOK_BACK = 8192
# After guesses that were all wrong, guessing pauses for 2, 4, ... tokens, up to this many.
_MAX_PAUSE = 32


class PromptLookup:
    """Guesses for one sequence. Token ids are given anew at each call; they only ever grow.

    Args:
        max_guesses: most guesses in a row.
    """

    __slots__ = ("_follows", "_key", "_limit", "_max_guesses", "_misses", "_num_seen", "_paused_until")

    def __init__(self, max_guesses: int) -> None:
        self._max_guesses = max_guesses
        self._limit = max_guesses  # follows what turned out right
        self._misses = 0  # since the last right guess
        self._paused_until = 0  # no guesses while the sequence is shorter
        self._follows: dict[int, int] = {}  # the last _LENGTH tokens, as one number -> the position behind them
        self._key = 0
        self._num_seen = -1  # tokens taken in; -1: none, and the beginning may be left out

    def guess(self, token_ids: SequenceABC[int], at_most: int) -> tuple[int, ...]:
        """What may follow `token_ids`; empty when their end has not come before."""
        start = self._find(token_ids)
        if start is None:
            return ()
        # Where the earlier place runs into the end, the text is a loop: go on around it.
        period = len(token_ids) - start
        return tuple(token_ids[start + index % period] for index in range(min(self._limit, at_most)))

    def has_guess(self, token_ids: SequenceABC[int]) -> bool:
        return self._find(token_ids) is not None

    def learn(self, num_tokens: int, num_guesses: int, num_right: int) -> None:
        """Guess more after right guesses, less after wrong ones. `num_tokens`: the sequence's length by now."""
        self._limit = min(self._max_guesses, num_right + 2)
        if num_right == 0 and num_guesses > 0:
            self._misses += 1
            self._paused_until = num_tokens + min(2**self._misses, _MAX_PAUSE)
        else:
            self._misses = 0

    def _find(self, token_ids: SequenceABC[int]) -> int | None:
        """Where the text goes on that ends like `token_ids`, the latest place before their end."""
        length = len(token_ids)
        if length < self._paused_until:
            return None
        if self._num_seen < 0:
            self._num_seen = max(0, length - _LOOK_BACK)
        for position in range(self._num_seen, length):
            # This token follows those before it.
            self._follows[self._key] = position
            self._key = (self._key << 32 | token_ids[position] + 1) & _KEY_MASK  # 0 is for no token
        self._num_seen = length
        return self._follows.get(self._key)
