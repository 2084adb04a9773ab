"""Grammars without a model: a walk through the tokens that the masks allow, and what a mask holds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import tokenizers
from text_generation_router.grammar.compiler import CompiledGrammar, Grammars
from text_generation_router.grammar.spec import GrammarSpec
from text_generation_router.tokenizer import Tokenizer

from tests.support.tokenizers import byte_fallback_tokenizer, byte_level_tokenizer

PADDING = 45  # ids of the model that no token has


class Vocabulary:
    """A tokenizer with the size of the model that goes with it."""

    def __init__(self, make: Callable[[], tokenizers.Tokenizer], *eos: str) -> None:
        package = make()
        self.size = package.get_vocab_size() + PADDING
        self.eos_token_ids = frozenset(package.token_to_id(token) or 0 for token in eos)
        self.tokenizer = Tokenizer(package, self.eos_token_ids)
        self.data = self.tokenizer.token_bytes(self.size) or []

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Raises: GrammarError."""

        async def compile_one() -> CompiledGrammar:
            grammars = Grammars(self.tokenizer, self.size)
            try:
                return await grammars.compile(spec)
            finally:
                grammars.close()

        return asyncio.run(compile_one())

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


BYTE_LEVEL = Vocabulary(byte_level_tokenizer, "</s>", "<|end of turn|>")
BYTE_FALLBACK = Vocabulary(byte_fallback_tokenizer, "</s>")
VOCABULARIES = (BYTE_LEVEL, BYTE_FALLBACK)
