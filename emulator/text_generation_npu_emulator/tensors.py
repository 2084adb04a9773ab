"""Tensors on the emulated cards, seen from the host: reading, writing, and making new ones.

A tensor in FRACTAL_NZ is read correctly only as a whole, straight or transposed; anything else is what real kernels
turn into garbage. Knows nothing about ops.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from text_generation_npu_emulator.formats import FRACTAL_NZ, ND, is_row_major_in_nz, nz_numel, nz_shape, pack, unpack
from text_generation_npu_emulator.memory import Allocator, Block

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_ATEN = torch.ops.aten

# Bytes of new, uninitialized tensors: 61,280 as float16, 1.3e36 as float32 and bfloat16, an index out of every range.
POISON = 0x7B

# Float32 copies of matrices that are multiplied with again and again; at most so many bytes of them.
_FLOAT32_CACHE_BYTES = 1 << 30
_FLOAT32_CACHE_MIN_NUMEL = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies that may be gone: whoever holds this keeps its bytes."""

    storage: torch.UntypedStorage  # on the host
    serial: int  # of its block
    device: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class NotReadable(Exception):
    """A tensor in a private format that is not the whole of what was cast. The message says which."""


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides of a shape."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_on_npu(value: object) -> bool:
    return isinstance(value, Tensor) and value.device.type == "npu"


class Tensors:
    """Host access to the tensors of an allocator's cards.

    Args:
        silent: whether parts of a tensor in FRACTAL_NZ are read as the garbage that a chip would read.
    """

    def __init__(self, allocator: Allocator, silent: bool) -> None:
        self.allocator = allocator
        self.silent = silent
        self._float32: OrderedDict[tuple[object, ...], Tensor] = OrderedDict()
        self._float32_bytes = 0
        self._converted: set[object] = set()  # serials of the blocks in it
        self._seen: OrderedDict[tuple[object, ...], None] = OrderedDict()

    def empty(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: int) -> Tensor:
        """A new tensor on a card, not initialized."""
        numel = 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        flat = self.allocator.allocate(numel * dtype.itemsize, device)
        if tuple(stride) == contiguous_stride(shape):
            self.block(flat).base_shape = tuple(shape)
        return self.view(flat, shape, stride, dtype)

    @staticmethod
    def view(flat: Tensor, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, offset: int = 0) -> Tensor:
        """A tensor over a flat one of bytes, which starts a storage."""
        # The CPU's kernels for views touch no data, and so do for any device.
        if flat.numel() < dtype.itemsize:
            flat = _ATEN.as_strided.default.redispatch(_CPU, flat, [0], [1], 0)
        typed = _ATEN.view.dtype.redispatch(_CPU, flat, dtype)
        return _ATEN.as_strided.default.redispatch(_CPU, typed, list(shape), list(stride), offset)  # type: ignore[no-any-return]

    def new(self, host: Tensor, device: int) -> Tensor:
        """A new tensor on a card with a host tensor's values and strides."""
        stride = host.stride() if host.numel() else contiguous_stride(host.shape)
        made = self.empty(host.shape, stride, host.dtype, device)
        if host.numel():
            self.alias(made).copy_(host)
        return made

    def block(self, tensor: Tensor) -> Block:
        return self.allocator.block_of(tensor)

    @property
    def next_serial(self) -> int:
        """Blocks made from now on have at least this serial."""
        return self.allocator.next_serial

    def hold(self, tensor: Tensor) -> Place | Tensor:
        """What a graph keeps of a tensor that was made while it was captured, and that its owner may let go."""
        block = self.block(tensor)
        shape, stride = tuple(tensor.shape), tensor.stride()
        return Place(
            block.host_storage(), block.serial, block.device, tensor.dtype, shape, stride, int(tensor.storage_offset())
        )

    def revive(self, place: Place, whole: dict[int, Tensor]) -> Tensor:
        """The tensor at a place. `whole` has flat tensors over all bytes of blocks, by serial; they are made once."""
        if place.serial not in whole:
            whole[place.serial] = self.allocator.revive(place.storage, place.serial, place.device)
        return self.view(whole[place.serial], place.shape, place.stride, place.dtype, place.offset)

    def alias(self, tensor: Tensor) -> Tensor:
        """A host tensor over the very bytes of a tensor on a card, its format not looked at."""
        storage = self.block(tensor).host_storage()
        empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())

    def whole_bytes(self, tensor: Tensor) -> Tensor:
        """A flat host tensor over all bytes of a tensor's storage, to be written."""
        block = self.block(tensor)
        block.generation += 1
        return torch.empty(0, dtype=torch.uint8, device="cpu").set_(block.host_storage(), 0, (block.nbytes,), (1,))

    def alias_to_write(self, tensor: Tensor) -> Tensor:
        """The same, for a tensor whose bytes are about to change."""
        self.block(tensor).generation += 1
        return self.alias(tensor)

    def format_of(self, tensor: Tensor) -> int:
        """The format that a storage reports; a slice of a tensor in FRACTAL_NZ reports FRACTAL_NZ, too."""
        return ND if self.block(tensor).nz_shape is None else FRACTAL_NZ

    def is_whole(self, tensor: Tensor) -> bool:
        """Whether a tensor is all of what was cast, straight or with its last two axes swapped."""
        base = self.block(tensor).nz_shape
        if base is None:
            return True
        if tensor.storage_offset() != 0:
            return False
        straight = (tuple(base), contiguous_stride(base))
        *leading, rows, columns = base
        *steps, row_step, column_step = straight[1]
        transposed = ((*leading, columns, rows), (*steps, column_step, row_step))
        return (tuple(tensor.shape), tensor.stride()) in (straight, transposed)

    def read(self, tensor: Tensor) -> Tensor:
        """A tensor's values on the host; over the same bytes if it is in ND.

        Raises: NotReadable.
        """
        base = self.block(tensor).nz_shape
        if base is None or (is_row_major_in_nz(base, tensor.element_size()) and self.is_whole(tensor)):
            return self.alias(tensor)
        if not self.is_whole(tensor):
            if self.silent:
                return self.alias(tensor)
            raise NotReadable(
                f"a {tuple(tensor.shape)} part of a {base} tensor in FRACTAL_NZ: the chip would read other elements; "
                "slice first, cast after"
            )
        whole = unpack(self._packed(tensor, base), base[-2], base[-1])
        return whole.as_strided(tensor.shape, tensor.stride())

    def _packed(self, tensor: Tensor, base: Sequence[int]) -> Tensor:
        shape = nz_shape(base, tensor.element_size())
        return self._whole(tensor, self.block(tensor).host_storage(), shape)

    def read_float32(self, tensor: Tensor) -> Tensor:
        """`read` in float32. A large matrix that is read again unchanged is converted once."""
        if tensor.dtype == torch.float32 and self.format_of(tensor) == ND:
            return self.alias(tensor)
        if tensor.numel() < _FLOAT32_CACHE_MIN_NUMEL:
            return self.read(tensor).float()
        block = self.block(tensor)
        key = (block.serial, block.generation, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        cached = self._float32.get(key)
        if cached is not None:
            self._float32.move_to_end(key)
            return cached
        values = self.read(tensor).float()
        if key in self._seen:
            self._keep(key, values)
        else:
            self._seen[key] = None
            if len(self._seen) > 4096:
                self._seen.popitem(last=False)
        return values

    def _keep(self, key: tuple[object, ...], values: Tensor) -> None:
        self._float32[key] = values
        self._converted.add(key[0])
        self._float32_bytes += values.nbytes
        while self._float32_bytes > _FLOAT32_CACHE_BYTES:
            _, dropped = self._float32.popitem(last=False)
            self._float32_bytes -= dropped.nbytes

    def forget(self, block: Block) -> None:
        """Drop what is kept for a block that is gone."""
        if block.serial not in self._converted:
            return
        self._converted.remove(block.serial)
        for key in [key for key in self._float32 if key[0] == block.serial]:
            self._float32_bytes -= self._float32.pop(key).nbytes

    def base_shape(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape of what a cast to another format casts: the tensor that was allocated, of which this is a view."""
        base = self.block(tensor).base_shape
        fits = base is not None and math.prod(base) * tensor.element_size() == self.block(tensor).nbytes
        return base if base is not None and fits else tuple(tensor.shape)

    def to_nz(self, tensor: Tensor) -> Tensor:
        """A tensor in ND, at least two axes long, in FRACTAL_NZ: the same view, of a new base."""
        base = self.base_shape(tensor)
        if self.block(tensor).base_shape == base:
            whole = self._whole(tensor, self.block(tensor).host_storage(), base)
        else:
            tensor = self.new(self.alias(tensor).contiguous(), tensor.device.index)
            whole = self.alias(tensor)
        made = self.empty_nz(base, tensor.dtype, tensor.device.index)
        self._packed(made, base).copy_(pack(whole))
        return self._same_view(made, tensor)

    def to_nd(self, tensor: Tensor) -> Tensor:
        """The same back. A tensor in ND is copied."""
        base = self.block(tensor).nz_shape
        if base is None:
            return self.new(self.alias(tensor).clone(memory_format=torch.contiguous_format), tensor.device.index)
        made = self.new(unpack(self._packed(tensor, base), base[-2], base[-1]), tensor.device.index)
        return self._same_view(made, tensor)

    def read_part(self, tensor: Tensor) -> Tensor:
        """The values of any view of a tensor in FRACTAL_NZ. What copies to the host does so; no kernel does."""
        base = self.block(tensor).nz_shape
        if base is None:
            return self.alias(tensor)
        whole = unpack(self._packed(tensor, base), base[-2], base[-1])
        return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    @staticmethod
    def _whole(tensor: Tensor, storage: torch.UntypedStorage, base: Sequence[int]) -> Tensor:
        return torch.empty(0, dtype=tensor.dtype, device="cpu").set_(storage, 0, tuple(base), contiguous_stride(base))

    @staticmethod
    def _same_view(base: Tensor, tensor: Tensor) -> Tensor:
        """The view of a new base that a tensor is of its own."""
        shape, stride, offset = list(tensor.shape), list(tensor.stride()), tensor.storage_offset()
        return _ATEN.as_strided.default.redispatch(_CPU, base, shape, stride, offset)  # type: ignore[no-any-return]

    def empty_nz(self, shape: Sequence[int], dtype: torch.dtype, device: int) -> Tensor:
        """A new tensor in FRACTAL_NZ, its padding zero."""
        flat = self.allocator.allocate(nz_numel(shape, dtype.itemsize) * dtype.itemsize, device)
        self.alias(flat).zero_()
        made = self.view(flat, shape, contiguous_stride(shape), dtype)
        self.block(made).nz_shape = tuple(shape)
        return made

    def storage_numel(self, tensor: Tensor) -> int:
        """Elements in a tensor's storage, padding included."""
        return math.ceil(self.block(tensor).nbytes / tensor.element_size())

    def replace(self, tensor: Tensor, other: Tensor) -> None:
        """Make one tensor object see the storage of another. Other views of the old storage keep that."""
        _ATEN.set_.source_Storage_storage_offset.redispatch(
            _CPU, tensor, other.untyped_storage(), other.storage_offset(), list(other.shape), list(other.stride())
        )
