"""The tokenizer in a GGUF as `tokenizer.json` and `tokenizer_config.json`.

A GGUF holds tokens, merges or scores, and only the *name* of the rule that splits text before merging. A name not known
here is refused: a wrong split gives text that looks almost right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from text_generation_server.download.errors import DownloadError
from text_generation_server.download.sentencepiece_merges import merges_from_scores

_SPACE = "▁"


class TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class _Split:
    """How text is cut before byte-level BPE, and what else the published tokenizers of that name do."""

    pattern: str | None = None  # None: the pattern of GPT-2
    single_digits: bool = False
    whole_words_first: bool = False  # a word that is a token is one, even if merges lead elsewhere
    compose: bool = False  # Unicode NFC first
    adds_bos: bool = False  # where the file does not say


_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD_START = r"[^\r\n\p{L}\p{N}]?"


def _words(digits: str) -> str:
    """The pattern that Llama 3 and Qwen 2 share but for how many digits stay together."""
    contractions = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    return rf"{contractions}|{_WORD_START}\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


_LLAMA3 = _Split(_words(r"\p{N}{1,3}"), whole_words_first=True, adds_bos=True)
_QWEN2 = _Split(_words(r"\p{N}"), compose=True)
_SINGLE_DIGITS = _Split(single_digits=True)
_SPLITS = {
    "gpt-2": _Split(),
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _Split(
        rf"{_WORD_START}{_UPPER}*{_LOWER}+|{_WORD_START}{_UPPER}+{_LOWER}*|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        whole_words_first=True,
        adds_bos=True,
    ),
}


class GGUFVocabulary:
    """The `tokenizer.` part of a GGUF's metadata."""

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self.path = path
        self.model = metadata.get("tokenizer.ggml.model")
        self._metadata = metadata
        tokens = self.get("tokens")
        if not tokens:
            raise DownloadError(f"{path} holds no tokenizer (tokenizer.ggml.tokens); use a GGUF that has one")
        self.tokens: list[str] = tokens
        self.types: list[int] = self.get("token_type") or [TokenType.NORMAL] * len(tokens)

    def get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

    def token(self, key: str) -> str | None:
        """The text of the token whose id stands under `key`."""
        token_id = self.get(key)
        return self.tokens[token_id] if token_id is not None and token_id < len(self.tokens) else None


def tokenizer(path: Path, metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer of a GGUF.

    Raises:
        DownloadError: a tokenizer model or a way to split text that is not known here.
    """
    vocabulary = GGUFVocabulary(path, metadata)
    if vocabulary.model == "gpt2":
        built = _byte_level(vocabulary)
        adds_bos = _split(vocabulary).adds_bos
    elif vocabulary.model == "llama":
        built = _sentencepiece(vocabulary)
        adds_bos = True
    else:
        raise DownloadError(f"{path} has a tokenizer of kind {vocabulary.model}; those that can be read: gpt2, llama")
    _add_special_tokens(built, vocabulary)
    bos = vocabulary.token("bos_token_id") if vocabulary.get("add_bos_token", adds_bos) else None
    eos = vocabulary.token("eos_token_id") if vocabulary.get("add_eos_token", False) else None
    _add_ends(built, bos, eos)
    return built


def tokenizer_config(path: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """`tokenizer_config.json`, with the chat template."""
    vocabulary = GGUFVocabulary(path, metadata)
    named = {
        "bos_token": vocabulary.token("bos_token_id"),
        "eos_token": vocabulary.token("eos_token_id"),
        "unk_token": vocabulary.token("unknown_token_id"),
        "pad_token": vocabulary.token("padding_token_id"),
        "chat_template": metadata.get("tokenizer.chat_template"),
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(token_id): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": vocabulary.types[token_id] != TokenType.USER_DEFINED,
            }
            for token_id, token in _special_tokens(vocabulary)
        },
        **{key: value for key, value in named.items() if value is not None},
    }


def _split(vocabulary: GGUFVocabulary) -> _Split:
    name = vocabulary.get("pre")
    if name not in _SPLITS:
        raise DownloadError(
            f"{vocabulary.path} splits text the way of {name or 'an unnamed pre-tokenizer'}, which is not known here; "
            f"known: {', '.join(_SPLITS)}. Use the original checkpoint folder instead"
        )
    return _SPLITS[name]


def _byte_level(vocabulary: GGUFVocabulary) -> Tokenizer:
    split = _split(vocabulary)
    merges = [_merge(merge) for merge in vocabulary.get("merges") or ()]
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    for left, right in merges:
        if not (left in ids and right in ids and left + right in ids):
            raise DownloadError(
                f"{vocabulary.path} merges {left!r} and {right!r}, which are not tokens: fetch it again"
            )
    built = Tokenizer(BPE(ids, merges, ignore_merges=split.whole_words_first))
    if split.compose:
        built.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = []
    if split.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if split.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None))
    built.pre_tokenizer = pre_tokenizers.Sequence(steps)
    built.decoder = decoders.ByteLevel()
    return built


def _merge(merge: str) -> tuple[str, str]:
    # a space stands between the two; a byte-level token never holds one
    left, _, right = merge.partition(" ")
    return left, right


def _sentencepiece(vocabulary: GGUFVocabulary) -> Tokenizer:
    scores = vocabulary.get("scores")
    if not scores:
        raise DownloadError(
            f"{vocabulary.path} has no tokenizer.ggml.scores; use the original checkpoint folder instead"
        )
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    text_scores = {
        token: score
        for token, score, kind in zip(vocabulary.tokens, scores, vocabulary.types, strict=True)
        if kind in (TokenType.NORMAL, TokenType.USER_DEFINED)
    }
    built = Tokenizer(
        BPE(
            ids,
            merges_from_scores(text_scores, ids),
            unk_token=vocabulary.token("unknown_token_id") or vocabulary.tokens[0],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    with_prefix = vocabulary.get("add_space_prefix", True)
    to_marks = normalizers.Replace(" ", _SPACE)
    built.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), to_marks]) if with_prefix else to_marks
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    built.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if with_prefix else steps)
    return built


def _special_tokens(vocabulary: GGUFVocabulary) -> list[tuple[int, str]]:
    kinds = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
    return [(i, vocabulary.tokens[i]) for i, kind in enumerate(vocabulary.types) if kind in kinds]


def _add_special_tokens(built: Tokenizer, vocabulary: GGUFVocabulary) -> None:
    """In runs of one kind, because the two kinds are added by different calls and ids must stay as they are."""
    for token_id, token in _special_tokens(vocabulary):
        if vocabulary.types[token_id] == TokenType.USER_DEFINED:
            built.add_tokens([AddedToken(token, normalized=False, special=False)])
        else:
            built.add_special_tokens([AddedToken(token, normalized=False, special=True)])


def _add_ends(built: Tokenizer, bos: str | None, eos: str | None) -> None:
    """Put BOS before and EOS after every text, those that are given."""
    before, after = ([bos] if bos else []), ([eos] if eos else [])
    if not before and not after:
        return
    special = [(token, built.token_to_id(token)) for token in dict.fromkeys([*before, *after])]
    built.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *(f"{token}:1" for token in before), "$B:1", *(f"{token}:1" for token in after)],
        special_tokens=special,
    )
