"""Stop strings are found at their own place, whatever the borders of the pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text_generation_router.stopping import StopStrings


def first_end(text: str, stops: list[str]) -> int | None:
    """Where the stop string that ends first ends, looked for in every prefix of the whole text."""
    for end in range(len(text) + 1):
        if any(stop and text[:end].endswith(stop) for stop in stops):
            return end
    return None


@given(
    st.lists(st.text("ab\n", max_size=4), max_size=12),
    st.lists(st.text("ab\n", max_size=5), max_size=4),
)
def test_pieces_stop_where_the_whole_text_first_holds_a_stop_string(pieces: list[str], stops: list[str]) -> None:
    finder = StopStrings(stops)
    length, found = 0, None
    for piece in pieces:
        length += len(piece)
        num_after = finder.find(piece)
        if num_after is not None:
            found = length - num_after
            break
    assert found == first_end("".join(pieces), stops)


@pytest.mark.parametrize("stops", [[], [""]])
def test_nothing_and_the_empty_string_stop_nothing(stops: list[str]) -> None:
    assert StopStrings(stops).find("anything") is None


def test_a_stop_string_that_must_end_with_the_piece() -> None:
    finder = StopStrings(["b", "long enough to keep a tail"])
    assert finder.find("abc", only_at_end=True) is None
    # Nor is it found later, in what is kept for longer ones.
    assert finder.find("d") is None
    assert finder.find("ab", only_at_end=True) == 0


def test_a_stop_string_longer_than_any_piece_is_found() -> None:
    stop = "x" * 1000
    finder = StopStrings([stop])
    results = [finder.find("x") for _ in range(1000)]
    assert results == [None] * 999 + [0]
