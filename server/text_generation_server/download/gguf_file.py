"""Reading a GGUF file: its metadata, and where each tensor's bytes lie.

Knows the container (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), not what the keys mean. The `gguf`
package has a reader too; it makes several numpy views per list element, which for the 300,000 tokens and merges of a
large vocabulary takes longer than the weights do.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from text_generation_server.download.errors import DownloadError

MAGIC = b"GGUF"
VERSIONS = (2, 3)

_STRING = 8
_ARRAY = 9
# metadata value type -> struct code
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

# What reading nonsense as a header can raise.
_DAMAGE = (struct.error, ValueError, KeyError, TypeError, ArithmeticError, RecursionError, MemoryError)


@dataclass(frozen=True)
class GGUFTensor:
    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]  # elements, outermost dimension first, as torch has it
    start: int  # byte offset in the file
    num_bytes: int


class GGUFFile:
    """An open GGUF file; tensor bytes are mapped, so only what is looked at is read.

    Raises:
        DownloadError: not a GGUF, of a version or byte order not known here, or cut short.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < 24 or file.read(4) != MAGIC:
                    raise DownloadError(f"{path} is not a GGUF file: it does not begin with the letters GGUF")
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise DownloadError(f"Cannot read {path}: {error.strerror or error}") from error
        self._offset = 4
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GGUFTensor] = {}
        try:
            self._read_header()
        except _DAMAGE as error:
            raise DownloadError(f"{path} is cut short or damaged ({error}): fetch it again") from error

    def raw(self, tensor: GGUFTensor) -> npt.NDArray[np.uint8]:
        """The tensor's bytes as they lie in the file, one row of the last dimension per row: [num_rows, row_bytes]."""
        flat = np.frombuffer(self._data, np.uint8, tensor.num_bytes, tensor.start)
        return flat.reshape(math.prod(tensor.shape[:-1]), -1)

    def _read_header(self) -> None:
        version = self._scalar("I")
        if version not in VERSIONS:
            known = " and ".join(map(str, VERSIONS))
            raise DownloadError(f"{self.path} has GGUF version {version}; versions {known}, little-endian, can be read")
        num_tensors, num_keys = self._scalar("Q"), self._scalar("Q")
        for _ in range(num_keys):
            key = self._string()
            self.metadata[key] = self._value(self._scalar("I"))
        infos = [self._tensor_info() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        data_start = -(-self._offset // alignment) * alignment
        for name, kind, shape, offset in infos:
            block_size, block_bytes = GGML_QUANT_SIZES[kind]
            if shape[-1] % block_size:
                raise ValueError(f"rows of {name} hold {shape[-1]} elements, not a multiple of {block_size}")
            num_bytes = math.prod(shape) // block_size * block_bytes
            if data_start + offset + num_bytes > len(self._data):
                raise ValueError(f"{name} ends after the end of the file")
            self.tensors[name] = GGUFTensor(name, kind, shape, data_start + offset, num_bytes)

    def _tensor_info(self) -> tuple[str, GGMLQuantizationType, tuple[int, ...], int]:
        name = self._string()
        shape = tuple(self._scalar("Q") for _ in range(self._scalar("I")))[::-1] or (1,)
        return name, GGMLQuantizationType(self._scalar("I")), shape, self._scalar("Q")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind])
        item_kind, length = self._scalar("I"), self._scalar("Q")
        if item_kind in _SCALARS:
            code = f"<{length}{_SCALARS[item_kind]}"
            values = struct.unpack_from(code, self._data, self._offset)
            self._offset += struct.calcsize(code)
            return list(values)
        return [self._value(item_kind) for _ in range(length)]

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self._offset)
        self._offset += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        end = self._offset + length
        if end > len(self._data):
            raise ValueError("a string ends after the end of the file")
        text = self._data[self._offset : end].decode("utf-8")
        self._offset = end
        return text
