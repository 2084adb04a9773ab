"""Token ids to text, one token at a time, at a cost that does not grow with the text.

Most decoders map each token to bytes whatever stands around it: byte-level BPE, and SentencePiece with byte fallback.
For those, `TokenBytes` remembers the bytes of every id met, and `Detokenizer` is an incremental UTF-8 decoder: bytes
that may still become a character are held back (at most three), bytes that cannot are given out at once as U+FFFD.
For any other decoder `WindowDetokenizer` decodes a short window of tokens twice and returns the difference.

Special tokens are not for here: they have their own text and do not touch what is held back. Knows nothing about
requests, stop strings or events.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MAX_HELD = 3  # bytes: a UTF-8 character has at most four

BytesOfToken = Callable[[str], bytes]


class IncrementalDetokenizer(Protocol):
    def push(self, token_id: int) -> str:
        """The text that this token completes; "" while a character is unfinished."""

    def flush(self) -> str:
        """What is held back, now that no more tokens come."""


class Piece(NamedTuple):
    """What one token contributes."""

    data: bytes
    text: str | None  # `data` decoded, where it is whole characters


class TokenBytes(dict[int, Piece]):
    """Pieces by token id, worked out at first use. An id that the tokenizer does not know contributes nothing."""

    def __init__(self, token_of_id: Callable[[int], str | None], bytes_of_token: BytesOfToken, errors: str) -> None:
        super().__init__()
        self._token_of_id = token_of_id
        self._bytes_of_token = bytes_of_token
        self.errors = errors  # the codec error handler that writes broken characters as the tokenizer's decoder does

    def __missing__(self, token_id: int) -> Piece:
        token = self._token_of_id(token_id)
        data = b"" if token is None else self._bytes_of_token(token)
        try:
            piece = Piece(data, data.decode())
        except UnicodeDecodeError:
            piece = Piece(data, None)
        self[token_id] = piece
        return piece

    def text(self, token_id: int) -> str:
        """The text of one token without its neighbours."""
        piece = self[token_id]
        return piece.data.decode(errors=self.errors) if piece.text is None else piece.text


class Detokenizer:
    __slots__ = ("_held", "_pieces")

    def __init__(self, pieces: TokenBytes) -> None:
        self._pieces = pieces
        self._held = b""

    def push(self, token_id: int) -> str:
        data, text = self._pieces[token_id]
        if text is not None and not self._held:
            return text
        data = self._held + data
        text, num_consumed = codecs.utf_8_decode(data, self._pieces.errors, False)
        self._held = data[num_consumed:]
        return text

    def flush(self) -> str:
        held, self._held = self._held, b""
        return held.decode(errors=self._pieces.errors)


class WindowDetokenizer:
    """For decoders whose tokens depend on their neighbours: needs the end of the prompt for the first spaces."""

    __slots__ = ("_context", "_decode", "_pending")

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt_tail: Sequence[int]) -> None:
        self._decode = decode
        self._context: deque[int] = deque(prompt_tail, maxlen=5)
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        self._pending.append(token_id)
        text = self._difference()
        if text.endswith(REPLACEMENT) and len(self._pending) <= _MAX_HELD:
            return ""
        self._settle()
        return text

    def flush(self) -> str:
        text = self._difference() if self._pending else ""
        self._settle()
        return text

    def _difference(self) -> str:
        context = list(self._context)
        return self._decode(context + self._pending)[len(self._decode(context)) :]

    def _settle(self) -> None:
        self._context.extend(self._pending)
        self._pending.clear()


def _one_mark_a_byte(error: UnicodeError) -> tuple[str, int]:
    """Error handler: U+FFFD for each byte, as the byte-fallback decoder writes it, not for each broken character."""
    assert isinstance(error, UnicodeDecodeError)
    return REPLACEMENT * (error.end - error.start), error.end


_EACH_BYTE = "text-generation-each-byte"
codecs.register_error(_EACH_BYTE, _one_mark_a_byte)


def byte_rule(decoder: Mapping[str, Any] | None) -> tuple[BytesOfToken, str] | None:
    """How a token's string becomes bytes, from the `decoder` of a tokenizer.json.

    Returns: the rule and a codec error handler; None if tokens of this decoder depend on their neighbours, or if it is
    not known here. A strip at the start of the text has no effect: something, the prompt, always stands before it.
    """
    if decoder is None:
        return None
    steps: list[Mapping[str, Any]] = list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return _byte_level, "replace"

    replacements: list[tuple[str, str]] = []
    byte_fallback = fused = False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if not (
                fused or byte_fallback
            ):
                replacements.append((old, new))
            case {"type": "Metaspace", "replacement": str(old)}:
                replacements.append((old, " "))
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "stop": 0} if fused:
                pass
            case _:
                return None
    if not replacements:
        return None

    def bytes_of_token(token: str) -> bytes:
        for old, new in replacements:
            token = token.replace(old, new)
        match = _BYTE_TOKEN.fullmatch(token) if byte_fallback else None
        return bytes.fromhex(match[1]) if match else token.encode()

    return bytes_of_token, _EACH_BYTE


def _byte_of_character() -> dict[str, int]:
    """Byte-level BPE writes a byte as a visible character: itself where Latin-1 shows it, else one from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(0x100 + index): byte for index, byte in enumerate(hidden)}


_BYTE_OF_CHARACTER = _byte_of_character()


def _byte_level(token: str) -> bytes:
    try:
        return bytes(map(_BYTE_OF_CHARACTER.__getitem__, token))
    except KeyError:  # an added token, which is its own text
        return token.encode()
