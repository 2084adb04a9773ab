"""Composed attention without a device: its arithmetic is plain torch, so float32 on the CPU will do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.kernels.paged_steps import HEADS, ROWS, Heads, PagedStep, Row, attend, build_step
from text_generation_kernels.npu.attention_rows import Run
from text_generation_kernels.npu.composed_attention import ComposedAttention, group_by_blocks, padded_rows
from text_generation_kernels.npu.kv_cache import NpuKVCache
from text_generation_kernels.reference import ReferenceOps

CPU = torch.device("cpu")


def composed(step: PagedStep, attention: ComposedAttention, filler: float = 0.0) -> Tensor:
    heads = step.heads
    shape = (step.num_blocks + 1, step.block_size, heads.num_kv_heads, heads.head_dim)
    k, v = (torch.full(shape, filler, dtype=step.k.dtype) for _ in range(2))
    k.flatten(0, 1)[step.slots.long()] = step.k
    v.flatten(0, 1)[step.slots.long()] = step.v
    cache = NpuKVCache(k, v, step.block_size, "nd", step.num_blocks, heads.num_kv_heads, heads.head_dim)
    metadata = step.metadata
    run = Run(0, metadata.num_tokens, metadata.block_tables, metadata.cu_seqlens_q, metadata.kv_lens)
    compute = attention.decode if all(row.new == 1 for row in step.rows) else attention.prompts
    return compute(step.q, cache, run, heads.scale, None)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_it_equals_the_reference(rows: tuple[Row, ...], heads: Heads) -> None:
    step = build_step(rows, heads)
    torch.testing.assert_close(
        composed(step, ComposedAttention(CPU)), attend(ReferenceOps(), step), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(
    "rows", [(Row(0, 600),), (Row(100, 257),), tuple(Row(20 * i, 1, i) for i in range(9))], ids=str
)
@pytest.mark.parametrize("workspace_bytes", [1, 1 << 16, 1 << 28])
def test_the_workspace_changes_nothing(rows: tuple[Row, ...], workspace_bytes: int) -> None:
    step = build_step(rows, Heads(4, 2, 16))
    whole = composed(step, ComposedAttention(CPU))
    torch.testing.assert_close(composed(step, ComposedAttention(CPU, workspace_bytes)), whole, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("filler", [1e4, torch.inf, torch.nan])
@pytest.mark.parametrize(
    "rows", [ROWS["decodes_of_many_lengths"], ROWS["chunk_across_block_edge"]], ids=["decode", "chunk"]
)
def test_what_others_left_reaches_no_row(rows: tuple[Row, ...], filler: float) -> None:
    step = build_step(rows, Heads())
    assert torch.equal(composed(step, ComposedAttention(CPU), filler), composed(step, ComposedAttention(CPU)))


def test_scores_beyond_float16_do_not_overflow() -> None:
    # q . k is 64 * 40 * 40 = 102,400 before it is scaled: more than float16 holds.
    step = build_step((Row(3, 1),), Heads(2, 2, 64))
    k = torch.full_like(step.k, 40.0)
    k[::2] = -40.0
    wide = replace(step, q=torch.full_like(step.q, 40.0), k=k)
    half = replace(wide, q=wide.q.half(), k=wide.k.half(), v=wide.v.half())
    out = composed(half, ComposedAttention(CPU))
    torch.testing.assert_close(out.float(), composed(wide, ComposedAttention(CPU)), atol=2e-3, rtol=2e-3)


def test_shapes_come_from_a_short_list() -> None:
    assert group_by_blocks((1, 128, 129, 300, 512, 513, 40), 128) == {1: [0, 1, 6], 2: [2], 4: [3, 4], 8: [5]}
    assert [padded_rows(n) for n in (1, 2, 3, 5, 9, 16, 17, 33)] == [1, 2, 4, 8, 16, 16, 32, 48]
