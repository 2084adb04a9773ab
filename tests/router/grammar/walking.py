"""Grammars without a model: a walk through the tokens that the masks allow, and what a mask holds."""

from __future__ import annotations

import asyncio
import random

import tokenizers

from tests.support.tokenizers import byte_fallback_tokenizer, byte_level_tokenizer
from text_generation_router.grammar.compiler import CompiledGrammar, Grammars
from text_generation_router.grammar.spec import GrammarSpec
from text_generation_router.tokenizer import Tokenizer

PADDING = 45  # ids of the model that no token has


class Vocabulary:
    """A tokenizer with the size of the model that goes with it."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        """`size`: of the model's vocabulary."""
        self.tokenizer = tokenizer
        self.size = size
        self.eos_token_ids = tokenizer.eos_token_ids
        self.grammars = Grammars(self.tokenizer, self.size)
        self.data = self.tokenizer.token_bytes(self.size) or []

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Raises: GrammarError."""

        return asyncio.run(self.grammars.compile(spec))

    def walk(self, grammar: CompiledGrammar, seed: int, max_tokens: int = 300) -> str | None:
        """A text of tokens drawn among those allowed, ended as soon as it may be; None if that took too long."""
        constraint, draw, text = grammar.constraint(), random.Random(seed), b""
        for _ in range(max_tokens):
            tokens = allowed(constraint.mask())
            if not self.eos_token_ids.isdisjoint(tokens):
                return text.decode()
            token_id = draw.choice(tokens)
            text += self.data[token_id]
            constraint.accept(token_id)
        return None


def allowed(mask: bytes) -> list[int]:
    bits = int.from_bytes(mask, "little")
    return [token_id for token_id in range(len(mask) * 8) if bits >> token_id & 1]


def _padded(package: tokenizers.Tokenizer, *eos: str) -> Vocabulary:
    eos_token_ids = frozenset(package.token_to_id(token) or 0 for token in eos)
    return Vocabulary(Tokenizer(package, eos_token_ids), package.get_vocab_size() + PADDING)


BYTE_LEVEL = _padded(byte_level_tokenizer(), "</s>", "<|end of turn|>")
BYTE_FALLBACK = _padded(byte_fallback_tokenizer(), "</s>")
VOCABULARIES = (BYTE_LEVEL, BYTE_FALLBACK)
