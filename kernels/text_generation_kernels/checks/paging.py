"""Steps over a paged cache for samples of attention: rows in shuffled blocks, and other values in every other slot."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from text_generation_kernels.checks.places import Place
from text_generation_kernels.checks.shapes import ModelSizes
from text_generation_kernels.interface import StepMetadata

# What other sequences left behind: it would show in every average it got into.
_POISON = 50.0
_SPARE_BLOCKS = 2


@dataclass(frozen=True, slots=True)
class Row:
    """The last `new` tokens of a sequence whose first `cached` are in the cache already."""

    cached: int
    new: int

    @property
    def kv_len(self) -> int:
        return self.cached + self.new


@dataclass(frozen=True, slots=True)
class PagedSample:
    """One step, and everything that its cache must hold."""

    q: Tensor  # [num_tokens, num_heads, head_dim] float32 on the host, as the next
    k: Tensor  # [sum of kv_lens, num_kv_heads, head_dim]
    v: Tensor
    slots: Tensor  # [sum of kv_lens] int32: where they lie
    own: Tensor  # [num_tokens] int64: which of them are the step's own
    num_blocks: int
    metadata: StepMetadata
    sizes: ModelSizes

    def attention(self, place: Place) -> Tensor:
        """As in a layer: the step's own keys and values are written right before."""
        sizes, step = self.sizes, self.metadata
        cache = place.ops.new_kv_cache(self.num_blocks, sizes.block_size, sizes.num_kv_heads, sizes.head_dim)
        k, v = place.put(self.k), place.put(self.v)
        num_slots = self.num_blocks * sizes.block_size
        poison = place.put(torch.full((num_slots, sizes.num_kv_heads, sizes.head_dim), _POISON))
        place.ops.store_kv(poison, poison, cache, place.place(torch.arange(num_slots, dtype=torch.int32)))
        place.ops.store_kv(k, v, cache, place.place(self.slots))
        here = StepMetadata(
            positions=place.place(step.positions),
            slot_mapping=place.place(step.slot_mapping),
            block_tables=place.place(step.block_tables),
            cu_seqlens_q=step.cu_seqlens_q,
            kv_lens=step.kv_lens,
        )
        own = place.place(self.own)
        place.ops.store_kv(k[own], v[own], cache, here.slot_mapping)
        return place.ops.attention(place.put(self.q), cache, here, sizes.head_dim**-0.5)


def paged_sample(rows: tuple[Row, ...], sizes: ModelSizes, generator: torch.Generator) -> PagedSample:
    """Rows with random contents in random blocks, some unused ones between them."""
    needed = [-(-row.kv_len // sizes.block_size) for row in rows]
    num_blocks = sum(needed) + _SPARE_BLOCKS
    free = torch.randperm(num_blocks, generator=generator).tolist()
    tables = torch.zeros(len(rows), max(needed), dtype=torch.int32)
    slots: list[int] = []
    own: list[int] = []
    positions: list[int] = []
    for index, row in enumerate(rows):
        blocks = [free.pop() for _ in range(needed[index])]
        tables[index, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        own += range(len(slots) + row.cached, len(slots) + row.kv_len)
        positions += range(row.cached, row.kv_len)
        slots += [
            blocks[position // sizes.block_size] * sizes.block_size + position % sizes.block_size
            for position in range(row.kv_len)
        ]

    def random(num_tokens: int, num_heads: int) -> Tensor:
        return torch.randn(num_tokens, num_heads, sizes.head_dim, generator=generator)

    all_slots = torch.tensor(slots, dtype=torch.int32)
    return PagedSample(
        q=random(len(own), sizes.num_heads),
        k=random(len(slots), sizes.num_kv_heads),
        v=random(len(slots), sizes.num_kv_heads),
        slots=all_slots,
        own=torch.tensor(own, dtype=torch.int64),
        num_blocks=num_blocks,
        metadata=StepMetadata(
            positions=torch.tensor(positions, dtype=torch.int64),
            slot_mapping=all_slots[own],
            block_tables=tables,
            cu_seqlens_q=tuple(accumulate((row.new for row in rows), initial=0)),
            kv_lens=tuple(row.kv_len for row in rows),
        ),
        sizes=sizes,
    )
