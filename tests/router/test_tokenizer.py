"""Encoding off the event loop, places in bytes, special tokens, and which ids end a text."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.checkpoints import make_tokenizer
from tests.support.tokenizers import byte_fallback_tokenizer, byte_level_tokenizer, word_tokenizer
from text_generation_router.tokenizer import Tokenizer, TokenizerError

TOKENIZER = Tokenizer(byte_level_tokenizer(), frozenset())


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_places_are_bytes_and_texts_are_slices_of_the_input(text: str) -> None:
    data = text.encode()
    for token in asyncio.run(TOKENIZER.tokenize(text)):
        assert data[token.start : token.stop].decode() == token.text
    ends = [token.stop for token in asyncio.run(TOKENIZER.tokenize(text))]
    assert ends == sorted(ends)
    assert not text or ends[-1] == len(data)


def test_added_special_tokens_have_no_place(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(make_tokenizer(tmp_path, add_bos=True))
    first, second = asyncio.run(tokenizer.tokenize("é"))[:2]
    assert (first.token_id, first.text, first.start, first.stop) == (1, "", 0, 0)
    assert (second.text, second.start, second.stop) == ("é", 0, 2)
    assert asyncio.run(tokenizer.encode("é", add_special_tokens=False)) == asyncio.run(tokenizer.encode("é"))[1:]


def test_a_long_word_does_not_stop_the_event_loop() -> None:
    async def test() -> None:
        encoding = asyncio.create_task(TOKENIZER.encode("a" * 1_900_000))
        longest = 0.0
        while not encoding.done():
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - before)
        assert len(await encoding) == 1_900_000
        assert longest < 0.5

    asyncio.run(test())


def test_truncation_and_padding_of_the_file_are_not_used() -> None:
    package = byte_level_tokenizer()
    package.enable_truncation(2)
    package.enable_padding(length=8)
    assert len(asyncio.run(Tokenizer(package, frozenset()).encode("hello"))) == 5


def test_special_tokens_are_those_flagged_so() -> None:
    package = byte_level_tokenizer()
    expected = {package.token_to_id("</s>"): "</s>", package.token_to_id("<|end of turn|>"): "<|end of turn|>"}
    assert TOKENIZER.special_texts == expected


def test_a_single_token_has_a_text_even_if_it_is_part_of_a_character() -> None:
    package = byte_level_tokenizer()
    assert TOKENIZER.token_text(package.token_to_id("ð") or 0) == "\ufffd"
    assert TOKENIZER.token_text(package.token_to_id("Ã©") or 0) == "é"
    assert TOKENIZER.token_text(package.token_to_id("</s>") or 0) == "</s>"
    fallback = byte_fallback_tokenizer()
    assert Tokenizer(fallback, frozenset()).token_text(fallback.token_to_id("▁th") or 0) == " th"
    assert Tokenizer(word_tokenizer(), frozenset()).token_text(3) == "word"


@pytest.mark.parametrize(
    ("generation_config", "config", "tokenizer_config", "expected"),
    [
        ({"eos_token_id": 1}, {"eos_token_id": 2}, {"eos_token": "<unk>"}, {1, 2}),
        ({"eos_token_id": [1, 3]}, None, None, {1, 3}),
        (None, {"eos_token_id": None}, {"eos_token": "</s>"}, {2}),
        (None, None, {"eos_token": {"content": "<pad>", "lstrip": False}}, {3}),
        (None, None, {"eos_token": "not a token"}, set()),
        (None, None, None, set()),
    ],
)
def test_eos_ids_are_those_of_both_configs_else_the_tokenizers(
    tmp_path: Path,
    generation_config: dict[str, Any] | None,
    config: dict[str, Any] | None,
    tokenizer_config: dict[str, Any] | None,
    expected: set[int],
) -> None:
    make_tokenizer(tmp_path)
    for name, content in (
        ("generation_config.json", generation_config),
        ("config.json", config),
        ("tokenizer_config.json", tokenizer_config),
    ):
        (tmp_path / name).unlink(missing_ok=True)
        if content is not None:
            (tmp_path / name).write_text(json.dumps(content))
    assert Tokenizer.from_folder(tmp_path).eos_token_ids == expected


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"has no tokenizer.json; `text-generation-server download-weights`"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer.json cannot be read"):
        Tokenizer.from_folder(tmp_path)
    make_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"config.json is not JSON"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(TokenizerError, match=r"config.json holds list, not an object"):
        Tokenizer.from_folder(tmp_path)
