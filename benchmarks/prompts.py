"""Prompts of an exact number of tokens that share no beginning, so that no prefix cache can help."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer


@dataclass(frozen=True)
class Prompt:
    text: str
    ids: list[int]


def word_ids(tokenizer: Tokenizer) -> Iterator[int]:
    """Every token that is a space and letters."""
    for token_id in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token_id])
        if text[:1] == " " and text[1:].isalpha() and text.isascii():
            yield token_id


class PromptSource:
    """Random common words of a tokenizer's vocabulary; the same seed gives the same prompts in the same order."""

    def __init__(self, tokenizer_json: Path, seed: int = 0) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer_json))
        self._random = random.Random(seed)
        self._words = [self._tokenizer.decode([token_id]) for token_id in word_ids(self._tokenizer)]

    def take(self, num_prompts: int, num_tokens: int) -> list[Prompt]:
        """`num_prompts` new prompts that encode to exactly `num_tokens` tokens each."""
        return [self._prompt(num_tokens) for _ in range(num_prompts)]

    def _prompt(self, num_tokens: int) -> Prompt:
        while True:
            ids: list[int] = self._tokenizer.encode("".join(self._random.choices(self._words, k=num_tokens))).ids
            text = self._tokenizer.decode(ids[:num_tokens])
            ids = self._tokenizer.encode(text).ids
            if len(ids) == num_tokens:
                return Prompt(text, ids)
