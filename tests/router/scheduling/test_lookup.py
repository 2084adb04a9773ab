"""Guesses by looking back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from text_generation_router.scheduling.lookup import PromptLookup


def test_what_followed_the_last_three_tokens_is_guessed() -> None:
    assert PromptLookup(4).guess([7, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], at_most=9) == (4, 5, 6, 7)


def test_the_latest_place_counts() -> None:
    assert PromptLookup(2).guess([1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3], at_most=9) == (5, 9)


def test_no_guess_without_three_equal_tokens() -> None:
    assert PromptLookup(4).guess([2, 3, 4, 9, 8, 2, 3], at_most=4) == ()
    assert not PromptLookup(4).has_guess([2, 3, 4, 9, 8, 2, 3])


def test_a_loop_is_followed_around() -> None:
    assert PromptLookup(8).guess([5, 1, 2, 1, 2, 1, 2], at_most=5) == (1, 2, 1, 2, 1)


def test_no_more_guesses_than_asked_for() -> None:
    token_ids = [1, 2, 3, 4, 5, 6, 1, 2, 3]
    assert PromptLookup(8).guess(token_ids, at_most=2) == (4, 5)


def test_wrong_guesses_pause_it_and_right_ones_lengthen_it() -> None:
    lookup = PromptLookup(8)
    token_ids = [1, 2, 3] * 20
    lookup.learn(len(token_ids), num_guesses=8, num_right=0)
    assert lookup.guess(token_ids, at_most=8) == ()
    assert lookup.guess([*token_ids, 1, 2], at_most=8) == (3, 1)
    lookup.learn(len(token_ids) + 2, num_guesses=2, num_right=2)
    assert len(lookup.guess([*token_ids, 1, 2], at_most=8)) == 4
    lookup.learn(len(token_ids) + 2, num_guesses=4, num_right=4)
    assert len(lookup.guess([*token_ids, 1, 2], at_most=8)) == 6


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 5))
def test_a_guess_is_what_stood_behind_the_latest_earlier_place(token_ids: list[int], step: int) -> None:
    """Taken in piece by piece or at once, compared with a search."""
    lookup = PromptLookup(1)
    for length in range(0, len(token_ids) + 1, step):
        known = token_ids[:length]
        places = [end for end in range(3, length) if known[end - 3 : end] == known[length - 3 :]]
        guess = lookup.guess(known, at_most=1)
        if length >= 3 and places:
            assert guess == (known[places[-1]],)
        else:
            assert guess == ()


def test_only_the_end_of_a_long_prompt_is_looked_through() -> None:
    """So that the first guess for 100,000 tokens does not hold up everybody's step."""
    token_ids = list(range(100, 100_100))
    assert not PromptLookup(4).has_guess([*token_ids, *token_ids[50_000:50_003]])
    assert PromptLookup(4).guess([*token_ids, *token_ids[99_000:99_003]], at_most=2) == tuple(token_ids[99_003:99_005])
