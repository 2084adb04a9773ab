"""A run is cut into parts of a few rows, which together are the run."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from text_generation_kernels.npu.attention_rows import Run, in_parts

# Three rows of 2, 1 and 4 tokens behind 10 others of the step.
RUN = Run(10, 17, torch.arange(6).view(3, 2), (0, 2, 3, 7), (5, 1, 9))


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (1, [(0, 2, (0, 2), (5,)), (2, 3, (0, 1), (1,)), (3, 7, (0, 4), (9,))]),
        (2, [(0, 3, (0, 2, 3), (5, 1)), (3, 7, (0, 4), (9,))]),
        (3, [(0, 7, (0, 2, 3, 7), (5, 1, 9))]),
        (4, [(0, 7, (0, 2, 3, 7), (5, 1, 9))]),
    ],
)
def test_parts_count_their_tokens_from_the_runs_first(most: int, expected: list[tuple[object, ...]]) -> None:
    parts = RUN.parts(most)
    assert [(part.first_token, part.end_token, part.cu_seqlens_q, part.kv_lens) for part in parts] == expected
    assert torch.equal(torch.cat([part.block_tables for part in parts]), RUN.block_tables)


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_each_token_is_computed_once_and_stays_in_its_place(most: int) -> None:
    q, seen = torch.randn(7, 2, 4), []

    def attend(tokens: Tensor, part: Run) -> Tensor:
        assert len(tokens) == part.num_tokens
        seen.append(part)
        return tokens * 2

    assert torch.equal(in_parts(q, RUN, most, attend), q * 2)
    in_parts(q, RUN, most, attend)
    assert all(first is second for first, second in zip(seen, seen[len(seen) // 2 :], strict=False))
