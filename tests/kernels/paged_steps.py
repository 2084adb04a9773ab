"""Steps over a paged cache, made from rows whose contents depend on the row alone, and the answers to expect.

A row's queries, keys and values come from its own seed. So the same row can stand alone, among any neighbours, in any
blocks, or be cut into chunks, and must give the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from text_generation_kernels.interface import KVCache, Ops, StepMetadata


@dataclass(frozen=True)
class Heads:
    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    kv_dtype: torch.dtype = torch.float32  # that keys and values are rounded to, so that a cache of it holds them

    def __str__(self) -> str:
        return f"{self.num_heads}-{self.num_kv_heads}-{self.head_dim}"

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.head_dim)


@dataclass(frozen=True)
class Row:
    """The last `new` tokens of a sequence whose first `cached` are in the cache already."""

    cached: int
    new: int
    seed: int = 0

    @property
    def kv_len(self) -> int:
        return self.cached + self.new

    def contents(self, heads: Heads) -> tuple[Tensor, Tensor, Tensor]:
        """(q, k, v) of all positions up to kv_len, each [kv_len, heads, head_dim] float32.

        Position p is the same for every kv_len above it.
        """
        generator = torch.Generator().manual_seed(self.seed)
        fused = torch.randn(self.kv_len, heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim, generator=generator)
        q, k, v = torch.split(fused, [heads.num_heads, heads.num_kv_heads, heads.num_kv_heads], dim=1)
        return q, k.to(heads.kv_dtype).float(), v.to(heads.kv_dtype).float()


@dataclass(frozen=True)
class PagedStep:
    """One step, and everything that its cache must hold before attention runs."""

    heads: Heads
    rows: tuple[Row, ...]
    block_size: int
    num_blocks: int
    metadata: StepMetadata
    q: Tensor  # [num_tokens, num_heads, head_dim]
    k: Tensor  # [sum of kv_lens, num_kv_heads, head_dim]
    v: Tensor
    slots: Tensor  # [sum of kv_lens] int32

    def own(self) -> tuple[Tensor, Tensor]:
        """(k, v) of the step's own tokens, each [num_tokens, num_kv_heads, head_dim]."""
        ends = list(accumulate(row.kv_len for row in self.rows))
        places = [place for row, end in zip(self.rows, ends, strict=True) for place in range(end - row.new, end)]
        return self.k[places], self.v[places]


def build_step(rows: tuple[Row, ...], heads: Heads, block_size: int = 16, seed: int = 0) -> PagedStep:
    """Give the rows blocks in random order, some unused ones left between them."""
    needed = [-(-row.kv_len // block_size) for row in rows]
    num_blocks = sum(needed) + 3
    free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).tolist()
    block_tables = torch.zeros(len(rows), max(needed, default=0), dtype=torch.int32)
    cu_seqlens_q = [0]
    positions: list[int] = []
    step_slots: list[int] = []
    slots: list[int] = []
    queries, keys, values = [], [], []
    for index, row in enumerate(rows):
        blocks = [free.pop() for _ in range(needed[index])]
        block_tables[index, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        row_slots = [blocks[p // block_size] * block_size + p % block_size for p in range(row.kv_len)]
        cu_seqlens_q.append(cu_seqlens_q[-1] + row.new)
        positions += range(row.cached, row.kv_len)
        step_slots += row_slots[row.cached :]
        slots += row_slots
        q, k, v = row.contents(heads)
        queries.append(q[row.cached :])
        keys.append(k)
        values.append(v)
    empty = torch.zeros(0, heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim)
    metadata = StepMetadata(
        positions=torch.tensor(positions, dtype=torch.int64),
        slot_mapping=torch.tensor(step_slots, dtype=torch.int32),
        block_tables=block_tables,
        cu_seqlens_q=tuple(cu_seqlens_q),
        kv_lens=tuple(row.kv_len for row in rows),
    )
    return PagedStep(
        heads=heads,
        rows=rows,
        block_size=block_size,
        num_blocks=num_blocks,
        metadata=metadata,
        q=torch.cat([empty[:, : heads.num_heads], *queries]),
        k=torch.cat([empty[:, : heads.num_kv_heads], *keys]),
        v=torch.cat([empty[:, : heads.num_kv_heads], *values]),
        slots=torch.tensor(slots, dtype=torch.int32),
    )


def filled_cache(ops: Ops, step: PagedStep, device: torch.device, filler: float = 0.0) -> KVCache:
    """A cache that holds the step's rows, and `filler` in every slot that is not theirs."""
    heads, dtype = step.heads, ops.activation_dtype
    cache = ops.new_kv_cache(step.num_blocks, step.block_size, heads.num_kv_heads, heads.head_dim)
    num_slots = step.num_blocks * step.block_size
    other = torch.full((num_slots, heads.num_kv_heads, heads.head_dim), filler).to(device, dtype)
    ops.store_kv(other, other, cache, torch.arange(num_slots, dtype=torch.int32).to(device))
    ops.store_kv(step.k.to(device, dtype), step.v.to(device, dtype), cache, step.slots.to(device))
    return cache


def on_device(metadata: StepMetadata, device: torch.device) -> StepMetadata:
    return StepMetadata(
        positions=metadata.positions.to(device),
        slot_mapping=metadata.slot_mapping.to(device),
        block_tables=metadata.block_tables.to(device),
        cu_seqlens_q=metadata.cu_seqlens_q,
        kv_lens=metadata.kv_lens,
    )


def attend(ops: Ops, step: PagedStep, device: torch.device | None = None, filler: float = 0.0) -> Tensor:
    """The attention of an implementation, float32 on the CPU: [num_tokens, num_heads, head_dim].

    As in a layer, the step's own keys and values are written right before.
    """
    device = device or torch.device("cpu")
    cache = filled_cache(ops, step, device, filler)
    metadata = on_device(step.metadata, device)
    k, v = step.own()
    ops.store_kv(k.to(device, ops.activation_dtype), v.to(device, ops.activation_dtype), cache, metadata.slot_mapping)
    out = ops.attention(step.q.to(device, ops.activation_dtype), cache, metadata, step.heads.scale)
    assert out.dtype == ops.activation_dtype
    assert out.shape == step.q.shape
    return out.float().cpu()


def contiguous_attention(step: PagedStep) -> Tensor:
    """The same by torch's own attention in float64 over each whole sequence, without pages and without a cache."""
    group_size = step.heads.num_heads // step.heads.num_kv_heads
    rows = [step.q[:0].double()]
    for row in step.rows:
        q, k, v = (x.double().transpose(0, 1) for x in row.contents(step.heads))  # [heads, kv_len, head_dim]
        k, v = k.repeat_interleave(group_size, dim=0), v.repeat_interleave(group_size, dim=0)
        whole = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=step.heads.scale)
        rows.append(whole.transpose(0, 1)[row.cached :])
    return torch.cat(rows).float()


# Lengths at the edges of blocks of 16; each kind of row; then kinds mixed.
ROWS: dict[str, tuple[Row, ...]] = {
    "one_token": (Row(0, 1),),
    "prompt_one_below_block": (Row(0, 15),),
    "prompt_of_a_block": (Row(0, 16),),
    "prompt_one_above_block": (Row(0, 17),),
    "decode_fills_block": (Row(15, 1),),
    "decode_opens_block": (Row(16, 1),),
    "decode_one_into_block": (Row(17, 1),),
    "chunk_from_block_edge": (Row(32, 16),),
    "chunk_across_block_edge": (Row(15, 3),),
    "cached_prefix_all_but_one": (Row(47, 1),),
    "decodes_of_one_length": (Row(20, 1, 1), Row(20, 1, 2), Row(20, 1, 3)),
    "decodes_of_many_lengths": (Row(0, 1, 1), Row(31, 1, 2), Row(200, 1, 3), Row(16, 1, 4), Row(190, 1, 5)),
    "mixed": (Row(40, 1, 1), Row(0, 33, 2), Row(16, 20, 3), Row(15, 1, 4), Row(0, 1, 5), Row(64, 2, 6)),
}
HEADS = (Heads(9, 3, 64), Heads(4, 1, 16), Heads(4, 4, 80))
# More heads than an NPU's op takes to a key head, and sizes that it does not; every size is the CPU's.
ODD_HEADS = (Heads(70, 1, 32), Heads(8, 2, 96), Heads(2, 1, 52))
