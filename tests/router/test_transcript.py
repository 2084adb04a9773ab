"""One sequence's text: stop strings, special tokens, unfinished characters, and what comes first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tokenizers import byte_fallback_tokenizer, byte_level_tokenizer
from text_generation_router.scheduling.request import FinishReason, Request, TokenEvent, TokenNumbers
from text_generation_router.tokenizer import Tokenizer
from text_generation_router.transcript import Token, Transcript
from text_generation_router.validation import ValidRequest

PACKAGE = byte_level_tokenizer()
TOKENIZER = Tokenizer(PACKAGE, frozenset())
EOS, TURN, ADDED = (PACKAGE.token_to_id(text) or 0 for text in ("</s>", "<|end of turn|>", "added word"))
NUMBERS = TokenNumbers(-1.0)
FALLBACK = Tokenizer(byte_fallback_tokenizer(), frozenset())


def ids(text: str) -> list[int]:
    return list(PACKAGE.encode(text, add_special_tokens=False).ids)


def write(
    token_ids: list[int],
    *,
    stop: tuple[str, ...] = (),
    last: FinishReason = FinishReason.LENGTH,
    tokenizer: Tokenizer = TOKENIZER,
) -> tuple[list[Token], Transcript]:
    """Push tokens until the transcript ends; `last` is what the replica says with the last one."""
    transcript = Transcript(tokenizer, ValidRequest(Request((5,), len(token_ids)), stop))
    tokens = []
    for position, token_id in enumerate(token_ids):
        reason = last if position == len(token_ids) - 1 else None
        tokens.append(transcript.push(TokenEvent(token_id, NUMBERS, (), reason, None, 0.0)))
        if transcript.finish_reason is not None:
            break
    return tokens, transcript


def ordinary_text(tokens: list[Token], tokenizer: Tokenizer = TOKENIZER) -> str:
    """Texts of the tokens joined, without what special tokens are called."""
    return "".join(
        token.text.removesuffix(tokenizer.special_texts[token.token_id]) if token.special else token.text
        for token in tokens
    )


@pytest.mark.parametrize("tokenizer", [TOKENIZER, FALLBACK], ids=["byte-level", "byte-fallback"])
@given(data=st.data())
def test_texts_of_tokens_without_special_ones_join_to_the_generated_text(
    tokenizer: Tokenizer, data: st.DataObject
) -> None:
    token_ids = data.draw(st.lists(st.integers(0, 263), min_size=1, max_size=30))
    tokens, transcript = write(token_ids, tokenizer=tokenizer)
    assert ordinary_text(tokens, tokenizer) == transcript.generated_text()
    assert transcript.num_tokens == len(token_ids)


@given(st.lists(st.integers(0, 260), min_size=1, max_size=30), st.lists(st.text("the \ufffda", min_size=1), max_size=3))
def test_the_generated_text_ends_right_after_a_stop_string(token_ids: list[int], stop: list[str]) -> None:
    tokens, transcript = write(token_ids, stop=tuple(stop))
    text = transcript.generated_text()
    assert ordinary_text(tokens).startswith(text)
    if transcript.finish_reason is FinishReason.STOP_SEQUENCE:
        assert any(text.endswith(one) for one in stop)
        assert len(text) > len(ordinary_text(tokens[:-1]))


def test_a_stop_string_in_the_middle_of_a_token_ends_the_text_there_and_the_token_stays_whole() -> None:
    tokens, transcript = write([*ids("x"), ADDED, *ids("never")], stop=("ded",))
    assert transcript.finish_reason is FinishReason.STOP_SEQUENCE
    assert [token.text for token in tokens] == ["x", "added word"]
    assert transcript.generated_text() == "xadded"


def test_a_stop_string_over_two_tokens_with_a_newline_after_it() -> None:
    tokens, transcript = write([*ids("a\n"), ADDED, *ids("b")], stop=("\nadd",))
    assert transcript.generated_text() == "a\nadd"
    assert tokens[-1].text == "added word"


def test_the_text_of_a_special_token_can_be_a_stop_string_and_is_not_shown() -> None:
    tokens, transcript = write([*ids("a"), TURN, *ids("b")], stop=("<|end of turn|>",))
    assert transcript.finish_reason is FinishReason.STOP_SEQUENCE
    assert tokens[-1] == Token(TURN, "<|end of turn|>", NUMBERS, True)
    assert transcript.generated_text() == "a"


def test_a_stop_string_does_not_end_inside_the_text_of_a_special_token() -> None:
    _, transcript = write([*ids("x"), TURN, *ids("yz")], stop=("turn", "of", "z"))
    assert transcript.finish_reason is FinishReason.LENGTH
    _, transcript = write([*ids("x"), TURN, *ids("yzw")], stop=("turn", "a longer one than the token", "z"))
    assert transcript.finish_reason is FinishReason.STOP_SEQUENCE
    assert transcript.generated_text() == "xyz"


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.EOS_TOKEN])
def test_length_and_eos_go_before_a_stop_string(reason: FinishReason) -> None:
    _, transcript = write(ids("ab"), stop=("b",), last=reason)
    assert transcript.finish_reason is reason
    assert transcript.generated_text() == "ab"


def test_the_eos_token_is_listed_and_not_shown() -> None:
    tokens, transcript = write([*ids("a"), EOS], last=FinishReason.EOS_TOKEN)
    assert tokens[-1] == Token(EOS, "</s>", NUMBERS, True)
    assert transcript.generated_text() == "a"


def test_a_character_over_four_tokens_comes_whole_with_the_last() -> None:
    token_ids = [PACKAGE.token_to_id(character) or 0 for character in "ðŁĺĢ"]
    tokens, transcript = write([*token_ids, *ids("!")])
    assert [token.text for token in tokens] == ["", "", "", "😀", "!"]
    assert transcript.generated_text() == "😀!"


def test_an_unfinished_character_at_the_end_is_given_out_with_the_last_token() -> None:
    tokens, transcript = write([*ids("a"), PACKAGE.token_to_id("ð") or 0])
    assert [token.text for token in tokens] == ["a", "\ufffd"]
    assert transcript.generated_text() == "a\ufffd"


def test_an_unfinished_character_before_eos_is_given_out_with_eos() -> None:
    tokens, transcript = write([PACKAGE.token_to_id("ð") or 0, EOS], last=FinishReason.EOS_TOKEN)
    assert [token.text for token in tokens] == ["", "\ufffd</s>"]
    assert [token.shown for token in tokens] == ["", "\ufffd"]
    assert transcript.generated_text() == "\ufffd"


def test_a_special_token_does_not_break_a_character() -> None:
    first, second = (PACKAGE.token_to_id(character) or 0 for character in "Ã©")
    tokens, transcript = write([first, TURN, second])
    assert [token.text for token in tokens] == ["", "<|end of turn|>", "é"]
    assert transcript.generated_text() == PACKAGE.decode([first, TURN, second])
