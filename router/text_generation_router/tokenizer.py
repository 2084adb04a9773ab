"""The model's tokenizer: text to ids in worker threads, ids to text, and which ids end a text.

Reads tokenizer.json through the `tokenizers` package; never transformers. Knows nothing about requests or HTTP.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import tokenizers

from text_generation_router.detokenizer import (
    Detokenizer,
    IncrementalDetokenizer,
    TokenBytes,
    WindowDetokenizer,
    byte_rule,
)

T = TypeVar("T")


class TokenizerError(Exception):
    """The tokenizer's files cannot be read, or it refused a text."""


@dataclass(frozen=True, slots=True)
class TextToken:
    """A token of a given text, with its place in the text's UTF-8 bytes. A token added by the tokenizer: "", 0, 0."""

    token_id: int
    text: str
    start: int
    stop: int


class Tokenizer:
    def __init__(self, tokenizer: tokenizers.Tokenizer, eos_token_ids: frozenset[int], *, num_workers: int = 2) -> None:
        """
        Args:
            tokenizer: owned from now on; its truncation and padding are switched off.
            eos_token_ids: ids that end a text.
            num_workers: threads that encode.
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.eos_token_ids = eos_token_ids
        # By id, of every added token that is flagged special.
        self.special_texts: Mapping[int, str] = {
            token_id: token.content for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special
        }
        rule = byte_rule(json.loads(tokenizer.to_str())["decoder"])
        self._pieces = None if rule is None else TokenBytes(tokenizer.id_to_token, *rule)
        self._workers = ThreadPoolExecutor(max(num_workers, 1), thread_name_prefix="tokenizer")

    @classmethod
    def from_folder(cls, folder: Path, *, num_workers: int = 2) -> Tokenizer:
        """Read a model's folder. Raises TokenizerError if it has no readable tokenizer.json."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(
                f"{folder} has no tokenizer.json; `text-generation-server download-weights` makes one where the model"
                " has only tokenizer.model"
            )
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises bare Exception
            raise TokenizerError(f"{path} cannot be read: {error}") from error
        return cls(tokenizer, _eos_token_ids(folder, tokenizer), num_workers=num_workers)

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, worked out in a worker thread. Raises TokenizerError."""
        return await self._in_worker(lambda: self._encode(text, add_special_tokens).ids)

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[TextToken]:
        """Tokens of a text with their places in it. Raises TokenizerError."""
        return await self._in_worker(lambda: _places(text, self._encode(text, add_special_tokens, offsets=True)))

    def token_text(self, token_id: int) -> str:
        """The text of one token by itself, special or not."""
        special = self.special_texts.get(token_id)
        if special is not None:
            return special
        return self.decode([token_id]) if self._pieces is None else self._pieces.text(token_id)

    def detokenizer(self, prompt_ids: Sequence[int]) -> IncrementalDetokenizer:
        """For the tokens that follow a prompt."""
        if self._pieces is not None:
            return Detokenizer(self._pieces)
        ordinary = [token_id for token_id in prompt_ids[-16:] if token_id not in self.special_texts]
        return WindowDetokenizer(self.decode, ordinary)

    def token_bytes(self, count: int) -> list[bytes] | None:
        """What each of the ids below `count` adds to a text; None if that depends on the tokens around it."""
        return None if self._pieces is None else [self._pieces[token_id].data for token_id in range(count)]

    def close(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)

    async def _in_worker(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._workers, work)

    def _encode(self, text: str, add_special_tokens: bool, *, offsets: bool = False) -> tokenizers.Encoding:
        # The batch calls release the GIL, `encode` does not: a long text would stop the event loop from here too.
        encode = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
        try:
            return encode([text], add_special_tokens=add_special_tokens)[0]
        except Exception as error:  # the package raises bare Exception
            raise TokenizerError(str(error)) from error

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)


def _places(text: str, encoding: tokenizers.Encoding) -> list[TextToken]:
    """Character offsets, which `tokenizers` reports in Python, to byte offsets."""
    if text.isascii():
        byte_of: Sequence[int] = range(len(text) + 1)
    else:
        byte_of = list(accumulate((len(character.encode()) for character in text), initial=0))
    return [
        TextToken(token_id, text[start:stop], byte_of[start], byte_of[stop])
        for token_id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
    ]


def _eos_token_ids(folder: Path, tokenizer: tokenizers.Tokenizer) -> frozenset[int]:
    """What generation_config.json and config.json name, together; else the token that tokenizer_config.json names."""
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        ids.update([value] if isinstance(value, int) else value or [])
    if not ids:
        token = _read_json(folder / "tokenizer_config.json").get("eos_token")
        content = token.get("content") if isinstance(token, dict) else token
        token_id = None if content is None else tokenizer.token_to_id(content)
        ids.update([] if token_id is None else [token_id])
    return frozenset(ids)


def _read_json(path: Path) -> dict[str, Any]:
    """An object from a file; {} if there is no such file. Raises TokenizerError if it is not a JSON object."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} holds {type(content).__name__}, not an object")
    return content
