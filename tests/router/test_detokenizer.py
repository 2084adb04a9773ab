"""Text that arrives token by token is the text that the tokenizer itself decodes, at any border."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tokenizers import byte_fallback_tokenizer, byte_level_tokenizer, word_tokenizer
from text_generation_router.detokenizer import Detokenizer, byte_rule
from text_generation_router.tokenizer import Tokenizer

BYTE_LEVEL = byte_level_tokenizer()
BYTE_FALLBACK = byte_fallback_tokenizer()
WORDS = word_tokenizer()

# Texts with characters of one to four bytes, many of which no token stands for.
texts = st.text(
    st.one_of(st.sampled_from("the a b é😀한\u2028"), st.characters(exclude_categories=["Cs"])), max_size=30
)


def ordinary_ids(vocab_size: int, first: int = 0) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(first, vocab_size - 1), max_size=40)


def pieces(tokenizer: Tokenizer, token_ids: list[int], prompt: list[int]) -> list[str]:
    """The text of each token, and what is held back at the end."""
    detokenizer = tokenizer.detokenizer(prompt)
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


@given(ordinary_ids(261))
def test_byte_level_pieces_of_any_ids_join_to_what_the_tokenizer_decodes(token_ids: list[int]) -> None:
    tokenizer = Tokenizer(BYTE_LEVEL, frozenset())
    assert "".join(pieces(tokenizer, token_ids, [5])) == BYTE_LEVEL.decode(token_ids, skip_special_tokens=False)


@given(texts)
def test_byte_fallback_pieces_join_to_the_text_with_its_spaces(text: str) -> None:
    tokenizer = Tokenizer(BYTE_FALLBACK, frozenset())
    token_ids = BYTE_FALLBACK.encode(text, add_special_tokens=False).ids
    prompt = BYTE_FALLBACK.encode("a", add_special_tokens=False).ids
    expected = BYTE_FALLBACK.decode(prompt + token_ids, skip_special_tokens=False)
    assert "a" + "".join(pieces(tokenizer, token_ids, prompt)) == expected


@given(ordinary_ids(BYTE_FALLBACK.get_vocab_size(), first=3))
def test_byte_fallback_pieces_of_any_ids_lose_no_byte(token_ids: list[int]) -> None:
    """The tokenizer itself marks a whole run of bytes as broken if one is; a stream cannot take characters back."""
    tokenizer = Tokenizer(BYTE_FALLBACK, frozenset())
    tokens = [BYTE_FALLBACK.id_to_token(token_id) for token_id in token_ids]
    data = b"".join(
        bytes([int(token[3:5], 16)]) if token.startswith("<0x") else token.replace("▁", " ").encode()
        for token in tokens
        if token is not None
    )
    expected, position = "", 0
    while position < len(data):
        for length in (1, 2, 3, 4):
            try:
                expected += data[position : position + length].decode()
            except UnicodeDecodeError:
                continue
            position += length
            break
        else:
            expected += "\ufffd"
            position += 1
    assert "".join(pieces(tokenizer, token_ids, [4])) == expected


@given(texts, st.sampled_from([BYTE_LEVEL, BYTE_FALLBACK]))
def test_at_most_three_bytes_are_held_back(text: str, package: object) -> None:
    tokenizer = Tokenizer(BYTE_LEVEL, frozenset()) if package is BYTE_LEVEL else Tokenizer(BYTE_FALLBACK, frozenset())
    bare = BYTE_LEVEL if package is BYTE_LEVEL else BYTE_FALLBACK
    rule = byte_rule(json.loads(bare.to_str())["decoder"])
    assert rule is not None
    num_bytes = num_given_out = 0
    detokenizer = tokenizer.detokenizer([5])
    for token_id in bare.encode(text, add_special_tokens=False).ids:
        num_bytes += len(rule[0](bare.id_to_token(token_id) or ""))
        piece = detokenizer.push(token_id)
        assert "\ufffd" not in piece or "\ufffd" in text
        num_given_out += len(piece.encode())
        assert num_bytes - num_given_out <= 3
    assert detokenizer.flush() == ""
    assert num_given_out == num_bytes


@given(st.lists(st.integers(1, 6), max_size=12), st.lists(st.integers(1, 6), min_size=1, max_size=8))
def test_tokens_that_depend_on_their_neighbours_join_to_what_the_tokenizer_decodes(
    token_ids: list[int], prompt: list[int]
) -> None:
    tokenizer = Tokenizer(WORDS, frozenset())
    assert not isinstance(tokenizer.detokenizer(prompt), Detokenizer)
    whole = WORDS.decode(prompt + token_ids)
    assert WORDS.decode(prompt) + "".join(pieces(tokenizer, token_ids, prompt)) == whole


def test_bytes_that_cannot_become_a_character_come_out_at_once() -> None:
    tokenizer = Tokenizer(BYTE_LEVEL, frozenset())
    ids = {byte: BYTE_LEVEL.token_to_id(character) for byte, character in ((0xF0, "ð"), (0x9F, "Ł"), (0x41, "A"))}
    detokenizer = tokenizer.detokenizer([5])
    held = [detokenizer.push(ids[byte] or 0) for byte in (0xF0, 0x9F)]
    assert held == ["", ""]
    assert detokenizer.push(ids[0x41] or 0) == "\ufffdA"
    assert detokenizer.flush() == ""


def test_an_id_that_the_tokenizer_does_not_know_has_no_text() -> None:
    assert pieces(Tokenizer(BYTE_LEVEL, frozenset()), [100_000], [5]) == ["", ""]


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}]},
        {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    ],
)
def test_other_decoders_are_not_taken_for_byte_decoders(decoder: dict[str, object] | None) -> None:
    assert byte_rule(decoder) is None


def test_metaspace_becomes_a_space_wherever_it_stands() -> None:
    rule = byte_rule({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True})
    assert rule is not None
    assert rule[0]("▁a▁b") == b" a b"
    assert rule[0]("<0x41>") == b"<0x41>"
