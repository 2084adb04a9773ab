"""Tokenizers built from GGUF metadata, against the libraries that define them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, pre_tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from text_generation_server.download import DownloadError
from text_generation_server.download.gguf_tokenizer import tokenizer, tokenizer_config

PATH = Path("model.gguf")
SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "What is the capital of France? The capital of France is Paris.",
    "One two three four five six seven eight nine ten; there and back again.",
    "Où est l'école? Über den Wolken, 1234 5678 and 90.",
]
# letters of several scripts, digits, spaces of several kinds, punctuation, and what needs four bytes
TEXTS = st.text(st.sampled_from("abTHE'sLl dé漢字٣12½ \n\r\t\u00a0\u3000.,!?_-/😀"), max_size=40)


def byte_level(pre: str) -> Tokenizer:
    """The 256 bytes and no merges: what is seen is the split."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": alphabet,
        "tokenizer.ggml.add_bos_token": False,
    }
    return tokenizer(PATH, metadata)


def pieces(built: Tokenizer, text: str) -> list[str]:
    return [text[start:end] for _, (start, end) in built.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("pre", ["llama3", "llama-v3", "llama-bpe", "falcon3", "qwen2", "deepseek-r1-qwen", "tekken"])
def test_text_is_split_by_the_pattern_that_transformers_knows(pre: str) -> None:
    built = byte_level(pre)
    known = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[pre]), behavior="isolated")

    @settings(max_examples=100, deadline=None)
    @given(TEXTS)
    def check(text: str) -> None:
        assert pieces(built, text) == [piece for piece, _ in known.pre_tokenize_str(text)]

    check()


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "in  1984 it's", ["in", " ", " 1984", " it", "'s"]),
        ("smollm", "in  1984 it's", ["in", "  ", "1", "9", "8", "4", " it", "'s"]),
        ("llama-bpe", "in  1984 IT'S", ["in", " ", " ", "198", "4", " IT", "'S"]),
        ("qwen2", "in 1984", ["in", " ", "1", "9", "8", "4"]),
        ("tekken", "inHTTPServer 12", ["in", "HTTPServer", " ", "1", "2"]),
    ],
)
def test_known_splits(pre: str, text: str, expected: list[str]) -> None:
    assert pieces(byte_level(pre), text) == expected


@pytest.fixture(scope="module")
def pieces_model() -> Any:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 4),
        model_writer=model,
        vocab_size=400,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["<tool>"],
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def sentencepiece_metadata(model: Any) -> dict[str, Any]:
    def kind(token_id: int) -> int:
        if model.is_unknown(token_id):
            return 2
        if model.is_control(token_id):
            return 3
        if model.is_byte(token_id):
            return 6
        return 4 if model.id_to_piece(token_id) == "<tool>" else 1

    ids = range(model.get_piece_size())
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(token_id) for token_id in ids],
        "tokenizer.ggml.scores": [model.get_score(token_id) for token_id in ids],
        "tokenizer.ggml.token_type": [kind(token_id) for token_id in ids],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def test_sentencepiece_vocabulary_gives_the_ids_of_sentencepiece(pieces_model: Any) -> None:
    built = tokenizer(PATH, sentencepiece_metadata(pieces_model))

    @settings(max_examples=300, deadline=None)
    @given(st.one_of(TEXTS, st.text(st.sampled_from("the capitlofFrncqukbw ."), max_size=60)))
    def check(text: str) -> None:
        expected = pieces_model.encode(text)
        assert built.encode(text, add_special_tokens=False).ids == expected
        assert built.decode(expected) == text

    check()
    for text in SENTENCES:
        assert built.encode(text).ids == [1, *pieces_model.encode(text)]


def test_user_defined_piece_is_one_token_and_stays_in_the_text(pieces_model: Any) -> None:
    metadata = sentencepiece_metadata(pieces_model)
    built = tokenizer(PATH, metadata)
    tool = pieces_model.piece_to_id("<tool>")
    assert tool in built.encode("call<tool>now").ids
    assert "<tool>" in built.decode([tool], skip_special_tokens=True)
    added = tokenizer_config(PATH, metadata)["added_tokens_decoder"]
    assert (added[str(tool)]["special"], added["1"]["special"]) == (False, True)


def test_no_space_is_put_before_the_text_if_the_file_says_so(pieces_model: Any) -> None:
    metadata = {**sentencepiece_metadata(pieces_model), "tokenizer.ggml.add_space_prefix": False}
    built = tokenizer(PATH, metadata)
    ids = built.encode("the fox", add_special_tokens=False).ids
    assert built.decode(ids[:1]).startswith("t")
    assert ids != tokenizer(PATH, sentencepiece_metadata(pieces_model)).encode("the fox", add_special_tokens=False).ids
    assert built.decode(ids) == "the fox"


@pytest.mark.parametrize(
    ("metadata", "line"),
    [
        ({}, "holds no tokenizer"),
        (
            {"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.model": "t5"},
            "of kind t5; those that can be read: gpt2, llama",
        ),
        (
            {"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.model": "gpt2"},
            "an unnamed pre-tokenizer, which is not known",
        ),
        ({"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.model": "llama"}, r"has no tokenizer\.ggml\.scores"),
    ],
)
def test_tokenizer_that_is_not_known_is_refused(metadata: dict[str, Any], line: str) -> None:
    with pytest.raises(DownloadError, match=line):
        tokenizer(PATH, metadata)
