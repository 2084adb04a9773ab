"""What only the CPU's attention has: groups of decode rows, and a workspace that they must fit in."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.paged_steps import ROWS, Heads, build_step, contiguous_attention, filled_cache
from text_generation_kernels.cpu.attention import PagedAttention, decode_groups
from text_generation_kernels.cpu.ops import CpuOps


def test_a_workspace_too_small_for_a_row_or_for_a_group_changes_nothing() -> None:
    heads = Heads()
    step = build_step(ROWS["mixed"] + ROWS["decodes_of_many_lengths"], heads)
    cache = filled_cache(CpuOps(), step, torch.device("cpu"))
    two_blocks = 2 * 16 * heads.num_kv_heads * heads.head_dim
    attention = PagedAttention(workspace_floats=two_blocks)
    out = attention(step.q, cache, step.metadata, heads.scale)
    torch.testing.assert_close(out, contiguous_attention(step), atol=1e-5, rtol=1e-5)


def test_rows_of_similar_length_share_a_group_and_others_do_not() -> None:
    num_blocks = [40, 3, 9, 38, 11, 200, 1]
    groups = list(decode_groups(list(range(7)), num_blocks, max_blocks=1000, max_padding=8))
    assert groups == [[5], [0, 3], [4, 2, 1], [6]]


def test_a_group_holds_no_more_than_fits() -> None:
    groups = list(decode_groups(list(range(5)), [10, 10, 10, 10, 31], max_blocks=30, max_padding=8))
    assert groups == [[4], [0, 1, 2], [3]]


@settings(deadline=None, derandomize=True)
@given(
    num_blocks=st.lists(st.integers(1, 300), max_size=40),
    max_blocks=st.integers(1, 600),
    max_padding=st.integers(0, 20),
)
def test_groups_cover_every_row_once_within_their_limits(
    num_blocks: list[int], max_blocks: int, max_padding: int
) -> None:
    rows = list(range(len(num_blocks)))
    groups = list(decode_groups(rows, num_blocks, max_blocks, max_padding))
    assert sorted(row for group in groups for row in group) == rows
    for group in groups:
        longest = max(num_blocks[row] for row in group)
        assert len(group) == 1 or len(group) * longest <= max_blocks
        assert all(longest - num_blocks[row] <= max(longest / 4, max_padding) for row in group)
