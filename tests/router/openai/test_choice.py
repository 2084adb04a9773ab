"""What a token adds to the text that is shown."""

from __future__ import annotations

import pytest

from text_generation_router.openai.choice import Choice
from text_generation_router.scheduling.request import TokenNumbers
from text_generation_router.transcript import Token

NUMBERS = TokenNumbers(-1.0)


@pytest.mark.parametrize(
    ("stops", "shown"),
    [
        ([], ["a", "\ufffd"]),
        (["\ufffd"], ["a", ""]),
        (["a\ufffd"], ["", ""]),
        (["\ufffd</s>"], ["a", ""]),
        (["b"], ["a", "\ufffd"]),
    ],
)
def test_a_character_that_an_end_token_cuts_short_is_text(stops: list[str], shown: list[str]) -> None:
    choice = Choice(stops)
    tokens = [Token(1, "a", NUMBERS, False), Token(2, "\ufffd</s>", NUMBERS, True, num_cut_short=1)]
    assert [choice.text(token, last=token is tokens[-1]) for token in tokens] == shown


def test_a_special_token_is_not_text() -> None:
    assert Choice([]).text(Token(2, "</s>", NUMBERS, True), last=True) == ""
