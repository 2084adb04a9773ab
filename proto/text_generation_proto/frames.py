"""Messages on a plain byte stream: each behind its length. Knows nothing of what they say, nor of who sends them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_LENGTH = struct.Struct("<I")


def frame(message: bytes) -> bytes:
    """A message of less than 4 GiB as it is written to the stream."""
    return _LENGTH.pack(len(message)) + message


class Frames:
    """Takes a stream's bytes as they come and gives out whole messages."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that `data`, read behind all before it, completes; to be exhausted before the next call."""
        held, first = self._held, 0
        held += data
        while len(held) - first >= _LENGTH.size:
            begin = first + _LENGTH.size
            end = begin + _LENGTH.unpack_from(held, first)[0]
            if end > len(held):
                break
            yield bytes(held[begin:end])
            first = end
        del held[:first]
