"""Steps before anything is served: the largest that fits is found, and an allocator's refusal is told from a bug."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from text_generation_server.step_runner import StepSize, is_out_of_memory, largest_fitting


@given(
    failed_tokens=st.integers(1, 8192),
    failed_rows=st.integers(1, 512),
    bytes_of_token=st.integers(1, 50),
    bytes_of_row=st.integers(1, 50),
    share=st.floats(0.0, 0.99),
)
def test_what_is_named_runs_and_is_near_the_limit(
    *, failed_tokens: int, failed_rows: int, bytes_of_token: int, bytes_of_row: int, share: float
) -> None:
    def cost(size: StepSize) -> int:
        return size.num_tokens * bytes_of_token + size.num_rows * bytes_of_row

    failed = StepSize(failed_tokens, failed_rows)
    there_is = int(cost(failed) * share)
    found = largest_fitting(failed, lambda size: cost(size) <= there_is)
    if found is None:
        sixteenth = StepSize(max(1, failed_tokens // 16), max(1, failed_rows // 16 + 1))
        assert cost(sixteenth) > there_is or cost(StepSize(failed_tokens // 16 + 1, failed_rows)) > there_is
        return
    assert cost(found) <= there_is
    assert found.num_tokens <= failed_tokens
    assert found.num_rows <= failed_rows
    if found.num_rows == failed_rows and found.num_tokens < failed_tokens:
        more = StepSize(found.num_tokens + max(1, failed_tokens // 16), failed_rows)
        assert cost(more) > there_is


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("NPU out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("expected 2 dimensions, got 3"), False),
    ],
)
def test_only_an_allocators_refusal_is_out_of_memory(error: RuntimeError, expected: bool) -> None:
    assert is_out_of_memory(error) is expected
