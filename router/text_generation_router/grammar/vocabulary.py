"""The model's vocabulary as the grammar engine needs it: the bytes that each id adds to the text."""

from __future__ import annotations

from llguidance import LLTokenizer, TokenizerWrapper

from text_generation_router.grammar.spec import NOT_SUPPORTED, GrammarError
from text_generation_router.tokenizer import Tokenizer


class _Vocabulary:
    """What the engine reads. It never tokenizes, since nothing is forced on the model."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], special_token_ids: list[int], eos_token_id: int) -> None:
        self.tokens = tokens
        self.special_token_ids = special_token_ids
        self.eos_token_id = eos_token_id

    def __call__(self, text: bytes) -> list[int]:
        return []


def load_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> LLTokenizer:
    """
    Args:
        vocab_size: of the model.
    Raises: GrammarError if tokens of this kind have no bytes of their own, or none of them ends a text.
    """
    eos_token_ids = sorted(token_id for token_id in tokenizer.eos_token_ids if token_id < vocab_size)
    tokens = tokenizer.token_bytes(vocab_size)
    if tokens is None or not eos_token_ids:
        raise GrammarError(NOT_SUPPORTED)
    special = {*tokenizer.special_texts, *eos_token_ids}
    special_token_ids = sorted(token_id for token_id in special if token_id < vocab_size)
    for token_id in special_token_ids:
        # Only its name: as a special token it stands for itself, not for these bytes.
        tokens[token_id] = b"<|%d|>" % token_id
    wrapper = TokenizerWrapper(_Vocabulary(tokens, special_token_ids, eos_token_ids[0]))
    return LLTokenizer(wrapper, n_vocab=vocab_size, eos_token=eos_token_ids)
