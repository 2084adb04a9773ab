"""What is shown ends before the stop string, and only what may begin one is held back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text_generation_router.openai.visible import VisibleText


def show(stops: list[str], *pieces: str) -> list[str]:
    """What comes out with each piece; in brackets: special tokens."""
    visible = VisibleText(stops)
    shown: list[str] = []
    for position, piece in enumerate(pieces, 1):
        special = piece.startswith("[")
        text = piece.strip("[]")
        shown.append(visible.push(text, special=special, last=position == len(pieces)))
        if visible.found_stop:
            break
    return shown


@pytest.mark.parametrize(
    ("stops", "pieces", "shown"),
    [
        ([], ["a", "[</s>]", "b"], ["a", "", "b"]),
        (["Pari"], ["of P", "a", "ris", "x"], ["of ", "", ""]),
        (["Pari"], ["of P", "a", "ck", "x"], ["of ", "", "Pack", "x"]),
        (["aab"], ["a", "a", "a", "b", "c"], ["", "", "a", ""]),
        (["b", "ab"], ["xa", "b"], ["x", ""]),  # both end here: nothing of the longer is shown
        (["abcd", "bc"], ["ab", "c"], ["", "a"]),
        (["x"], ["ab", "x"], ["ab", ""]),
        (["."], ["one. two"], ["one"]),
        (["ab"], ["xa"], ["xa"]),  # nothing comes after it
        (["</s>"], ["a", "[</s>]"], ["a", ""]),
        (["b</s>"], ["ab", "[</s>]"], ["a", ""]),
        (["b</"], ["ab", "[</s>]", "c"], ["a", "b", "c"]),  # a stop string does not end inside a special token
        (["", "b"], ["a", "b"], ["a", ""]),
    ],
)
def test_pieces(stops: list[str], pieces: list[str], shown: list[str]) -> None:
    assert show(stops, *pieces) == shown


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.lists(st.text("abc", max_size=3), min_size=1))
def test_the_text_is_cut_before_the_stop_string_that_ends_first(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    shown = show(stops, *pieces)
    assert "".join(shown) == (text[: min(ends)[1]] if ends else text)
    # At any moment only a beginning of a stop string is missing.
    for count in range(1, min(len(shown), len(pieces) - 1)):
        missing = "".join(pieces[:count])[len("".join(shown[:count])) :]
        assert not missing or any(stop.startswith(missing) for stop in stops)
