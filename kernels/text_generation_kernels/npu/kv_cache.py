"""The paged cache on an NPU: its two layouts, the spare block that swallows what must not be written, and the writes.

    nd   [num_blocks + 1, block_size, num_kv_heads, head_dim]
    nz   [num_blocks + 1, num_kv_heads * head_dim / 16, block_size, 16] in FRACTAL_NZ, what ATB wants on a 310P

No op is documented to leave out a token, so slot -1 is sent to a spare block behind the others, which no sequence owns.
An NZ cache can be read by ATB alone: indexing a tensor in NZ gives wrong data, so a prompt's own keys and values are
handed on from the write to the attention that follows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from text_generation_kernels.dtypes import dtype_name
from text_generation_kernels.interface import KVCache
from text_generation_kernels.npu.candidates import Choice
from text_generation_kernels.npu.schemas import InstalledOps
from text_generation_kernels.npu.soc import Family

Layout = Literal["nd", "nz"]
FRACTAL_NZ = 29
ND_FORMAT = 2
SPARE_BLOCKS = 1


@dataclass(slots=True)
class HandOff:
    """The keys and values of the last write, for the attention of the same step."""

    written: tuple[Tensor, Tensor, Tensor] | None = None  # k, v, and the slots that tell which step it was

    def take(self, slot_mapping: Tensor) -> tuple[Tensor, Tensor] | None:
        """(k, v) if they were written to these very slots. Gives them once, so that they are not kept alive."""
        written, self.written = self.written, None
        if written is None or written[2] is not slot_mapping:
            return None
        return written[0], written[1]


@dataclass(frozen=True, slots=True)
class NpuKVCache(KVCache):
    """One layer's cache. `k` and `v` hold the spare block, too."""

    layout: Layout
    num_blocks: int  # that sequences may use
    num_kv_heads: int
    head_dim: int
    handoff: HandOff = field(default_factory=HandOff)

    @property
    def spare_slot(self) -> int:
        return self.num_blocks * self.block_size

    def pages(self) -> tuple[Tensor, Tensor]:
        """(k, v) as [num_blocks + 1, block_size, num_kv_heads * head_dim]: the same memory, in nd only."""
        assert self.layout == "nd", "pages of a cache in NZ cannot be viewed"
        return self.k.flatten(2), self.v.flatten(2)


@dataclass(frozen=True, slots=True)
class StoreShape:
    """What decides which way of writing will do."""

    layout: Layout
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)} in {self.layout}"


# (k, v, cache, slots): k and v contiguous [num_tokens, num_kv_heads, head_dim], slots int32 within the cache.
Store = Callable[[Tensor, Tensor, NpuKVCache, Tensor], None]


def new_cache(
    torch_npu: Any,
    device: torch.device,
    dtype: torch.dtype,
    layout: Layout,
    shape: tuple[int, int, int, int],
) -> NpuKVCache:
    """A zeroed cache.

    Args:
        shape: (num_blocks, block_size, num_kv_heads, head_dim).
    Raises: RuntimeError, if the chip gives back another format than was asked for.
    """
    num_blocks, block_size, num_kv_heads, head_dim = shape
    if layout == "nd":
        sizes = (num_blocks + SPARE_BLOCKS, block_size, num_kv_heads, head_dim)
        k, v = (torch.zeros(sizes, dtype=dtype, device=device) for _ in range(2))
    else:
        sizes = (num_blocks + SPARE_BLOCKS, num_kv_heads * head_dim // 16, block_size, 16)
        k, v = (torch_npu.npu_format_cast(torch.zeros(sizes, dtype=dtype, device=device), FRACTAL_NZ) for _ in range(2))
        # With one cache in NZ and one in ND the write would silently take the ND way.
        formats = [int(torch_npu.get_npu_format(tensor)) for tensor in (k, v)]
        if formats != [FRACTAL_NZ, FRACTAL_NZ]:
            raise RuntimeError(f"caches in NZ were asked for, formats {formats} came")
    return NpuKVCache(k, v, block_size, layout, num_blocks, num_kv_heads, head_dim)


def read_cache(torch_npu: Any, cache: NpuKVCache) -> tuple[Tensor, Tensor]:
    """What a cache holds, without the spare block: (keys, values), each [num_blocks, block_size, num_kv_heads,
    head_dim] float32 on the host."""

    def read(tensor: Tensor) -> Tensor:
        if cache.layout == "nz":
            plain = torch_npu.npu_format_cast(tensor, ND_FORMAT).cpu()  # [num_blocks + 1, width / 16, block_size, 16]
            tensor = plain.transpose(1, 2)
        shape = (cache.num_blocks + SPARE_BLOCKS, cache.block_size, cache.num_kv_heads, cache.head_dim)
        return tensor.cpu().reshape(shape)[: cache.num_blocks].float()

    return read(cache.k), read(cache.v)


def store_candidates(installed: InstalledOps, family: Family) -> Choice[Store, StoreShape]:
    """The ways to write keys and values on a family, in order."""
    choice: Choice[Store, StoreShape] = Choice("store_kv")
    if family.name == "A5":
        choice.add("npu_scatter_pa_kv_cache", lambda: _scatter_pa(installed), _nd_only)
    elif family.name != "A1":
        choice.add("_npu_reshape_and_cache", lambda: _reshape_and_cache(installed), _atb_refusal(family))
    choice.add("npu_scatter_nd_update_", lambda: _scatter_nd(installed), _nd_only)
    choice.add("composed", lambda: _index_copy, _nd_only)
    return choice


def _nd_only(shape: StoreShape) -> str | None:
    return None if shape.layout == "nd" else "it writes ND caches only"


def _atb_refusal(family: Family) -> Callable[[StoreShape], str | None]:
    layout = "nz" if family.name == "310P" else "nd"

    def refusal(shape: StoreShape) -> str | None:
        if shape.dtype.itemsize != 2:
            return f"{dtype_name(shape.dtype)} is not a type of 16 bits"
        return None if shape.layout == layout else f"on this chip it is for caches in {layout}"

    return refusal


def _reshape_and_cache(installed: InstalledOps) -> Store:
    op = installed.bind("_npu_reshape_and_cache", "key", "value", "key_cache", "value_cache", "slot_indices")

    def store(k: Tensor, v: Tensor, cache: NpuKVCache, slots: Tensor) -> None:
        op(key=k, value=v, key_cache=cache.k, value_cache=cache.v, slot_indices=slots)

    return store


def _scatter_pa(installed: InstalledOps) -> Store:
    # The default of cache_mode is "PA_NZ". A release without the argument does not say what it does, and is refused.
    op = installed.bind(
        "npu_scatter_pa_kv_cache", "key", "value", "key_cache", "value_cache", "slot_mapping", "cache_mode"
    )

    def store(k: Tensor, v: Tensor, cache: NpuKVCache, slots: Tensor) -> None:
        op(key=k, value=v, key_cache=cache.k, value_cache=cache.v, slot_mapping=slots, cache_mode="Norm")

    return store


def _scatter_nd(installed: InstalledOps) -> Store:
    op = installed.bind("npu_scatter_nd_update_", "input", "indices", "updates")

    def store(k: Tensor, v: Tensor, cache: NpuKVCache, slots: Tensor) -> None:
        indices = slots.view(-1, 1)
        op(input=cache.k.flatten(0, 1), indices=indices, updates=k)
        op(input=cache.v.flatten(0, 1), indices=indices, updates=v)

    return store


def _index_copy(k: Tensor, v: Tensor, cache: NpuKVCache, slots: Tensor) -> None:
    indices = slots.long()
    cache.k.flatten(0, 1).index_copy_(0, indices, k)
    cache.v.flatten(0, 1).index_copy_(0, indices, v)
