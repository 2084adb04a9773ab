"""Tensors of the real torch_npu, seen from the host: its cards' memory is the host's, so a pointer is enough.

torch_npu's allocator keeps the books of memory, and torch_npu those of formats. What is kept here is which storage is
which, and how often it was written.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from text_generation_npu_emulator.formats import FRACTAL_NZ, nz_numel
from text_generation_npu_emulator.memory import Allocator, Block
from text_generation_npu_emulator.storage import weak
from text_generation_npu_emulator.tensors import Place, Tensors, contiguous_stride

_MOST_KNOWN = 4096  # storages, before those that are gone are looked for


@dataclass(slots=True)
class WheelBlock(Block):
    """A storage whose bytes torch_npu's allocator owns."""

    bytes_on_host: Tensor = field(kw_only=True)  # over the same bytes; owns nothing

    def host_storage(self) -> torch.UntypedStorage:
        return self.bytes_on_host.untyped_storage()


class WheelStorages(Allocator):
    """Storages that torch_npu's allocator made; the books of cards are its own."""

    def __init__(self, on_freed: Callable[[Block], None]) -> None:
        super().__init__([], 0, on_freed)

    def allocate(self, nbytes: int, device: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=f"npu:{device}")

    def block_of(self, tensor: Tensor) -> Block:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        block = self._blocks.get(address)
        if block is None or block.card.cdata != storage._cdata or block.card.expired():
            if block is not None:
                self._forget(address)
            elif len(self._blocks) >= _MOST_KNOWN:
                self.sweep()
            block = self._meet(tensor, storage, address)
        return block

    def _meet(self, tensor: Tensor, storage: torch.UntypedStorage, address: int) -> Block:
        nbytes = storage.nbytes()
        host = _host_bytes(address, nbytes)
        block = WheelBlock(
            serial=self._next_serial,
            card=weak(tensor),
            host=weak(host),
            nbytes=nbytes,
            charged_bytes=0,
            device=int(tensor.device.index),
            bytes_on_host=host,
        )
        self._next_serial += 1
        if nbytes:
            self._blocks[address] = block
        return block

    def _forget(self, address: int) -> None:
        block = self._blocks.pop(address, None)
        if block is not None:
            self._on_freed(block)


def _host_bytes(address: int, nbytes: int) -> Tensor:
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype=torch.uint8)


class WheelTensors(Tensors):
    """Host access to torch_npu's tensors. New ones are made by torch_npu.

    Args:
        torch_npu: the module.
    """

    def __init__(self, storages: WheelStorages, silent: bool, torch_npu: Any) -> None:
        super().__init__(storages, silent)
        self._torch_npu = torch_npu

    def empty(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: int) -> Tensor:
        return torch.empty_strided(list(shape), list(stride), dtype=dtype, device=f"npu:{device}")

    def empty_nz(self, shape: Sequence[int], dtype: torch.dtype, device: int) -> Tensor:
        made: Tensor = self._torch_npu.empty_with_format(
            list(shape), dtype=dtype, device=f"npu:{device}", acl_format=FRACTAL_NZ
        )
        return made

    def block(self, tensor: Tensor) -> Block:
        block = super().block(tensor)
        if self.format_of(tensor) != FRACTAL_NZ:
            block.nz_shape = None
        elif block.nz_shape is None:
            block.nz_shape = self._cast_shape(tensor)
        return block

    def format_of(self, tensor: Tensor) -> int:
        return int(torch.ops.npu.get_npu_format.default(tensor))

    def storage_numel(self, tensor: Tensor) -> int:
        return int(self._torch_npu.get_storage_size(tensor))

    def replace(self, tensor: Tensor, other: Tensor) -> None:
        torch.ops.aten.set_.source_Tensor(tensor, other)

    def hold(self, tensor: Tensor) -> Place | Tensor:
        """The tensor itself. A graph of the chip lets go of it, and keeps its memory from all but itself."""
        return tensor

    def _cast_shape(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape of what was cast, which torch_npu does not tell: found from the first tensor of it that is seen."""
        shape = tuple(tensor.shape)
        swapped = (*shape[:-2], shape[-1], shape[-2])
        for candidate, seen in ((shape, tensor), (swapped, tensor.mT)):
            fits = nz_numel(candidate, tensor.element_size()) == self.storage_numel(tensor)
            if fits and seen.stride() == contiguous_stride(candidate) and tensor.storage_offset() == 0:
                return candidate
        return (self.storage_numel(tensor), 1)  # a part, and so no tensor's own shape
