"""Paged attention on every backend: against the reference, and the same numbers whatever a row's neighbours are."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kernels.implementations import Backend
from tests.kernels.paged_steps import HEADS, ODD_HEADS, ROWS, Heads, Row, attend, build_step, contiguous_attention
from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.interface import StepMetadata
from text_generation_kernels.reference import ReferenceOps

REFERENCE = ReferenceOps()
# A backend is made once per session and keeps nothing between calls, so examples may share it.
PROPERTY = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def attend_on(
    backend: Backend, rows: tuple[Row, ...], heads: Heads, block_size: int = 16, seed: int = 0
) -> torch.Tensor:
    return attend(backend.ops, build_step(rows, heads, block_size, seed), backend.device.torch_device)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_attention_equals_the_reference(backend: Backend, rows: tuple[Row, ...], heads: Heads) -> None:
    step = build_step(rows, backend.heads(heads), backend.device.default_block_size)
    actual = attend(backend.ops, step, backend.device.torch_device)
    torch.testing.assert_close(actual, attend(REFERENCE, step), atol=backend.tolerance, rtol=backend.tolerance)


@pytest.mark.parametrize("heads", ODD_HEADS, ids=str)
@pytest.mark.parametrize("rows", [ROWS["decodes_of_many_lengths"], ROWS["mixed"]], ids=["decodes", "mixed"])
def test_heads_of_any_number_and_size_equal_the_reference_on_the_cpu(
    backend: Backend, rows: tuple[Row, ...], heads: Heads
) -> None:
    if not isinstance(backend.device, CpuDevice):
        pytest.skip("an NPU's ops say which heads they take")
    step = build_step(rows, backend.heads(heads))
    actual = attend(backend.ops, step, backend.device.torch_device)
    torch.testing.assert_close(actual, attend(REFERENCE, step), atol=backend.tolerance, rtol=backend.tolerance)


@pytest.mark.parametrize("rows", [(Row(0, 600),), (Row(100, 257, 1), Row(1300, 1, 2)), (Row(0, 256),)], ids=str)
@pytest.mark.parametrize("heads", [Heads(4, 2, 16), Heads(9, 3, 64), Heads(3, 3, 64)], ids=str)
def test_long_rows_equal_torch_attention(backend: Backend, rows: tuple[Row, ...], heads: Heads) -> None:
    step = build_step(rows, backend.heads(heads), backend.device.default_block_size)
    actual = attend(backend.ops, step, backend.device.torch_device)
    torch.testing.assert_close(actual, contiguous_attention(step), atol=backend.tolerance, rtol=backend.tolerance)


def test_queries_may_be_views_into_a_fused_projection(backend: Backend) -> None:
    step = build_step(ROWS["mixed"], backend.heads(Heads()), backend.device.default_block_size)
    fused = torch.randn(step.q.shape[0], 15, 64)
    fused[:, :9] = step.q
    strided = replace(step, q=fused[:, :9])
    actual = attend(backend.ops, strided, backend.device.torch_device)
    torch.testing.assert_close(actual, contiguous_attention(step), atol=backend.tolerance, rtol=backend.tolerance)


@pytest.mark.parametrize(("cu_seqlens_q", "kv_lens"), [((0,), ()), ((0, 0, 0), (0, 0))], ids=["no_rows", "empty_rows"])
def test_an_empty_step_gives_an_empty_result(
    backend: Backend, cu_seqlens_q: tuple[int, ...], kv_lens: tuple[int, ...]
) -> None:
    ops, device = backend.ops, backend.device.torch_device
    cache = ops.new_kv_cache(2, backend.device.default_block_size, 3, 64)
    step = StepMetadata(
        positions=torch.zeros(0, dtype=torch.int64, device=device),
        slot_mapping=torch.zeros(0, dtype=torch.int32, device=device),
        block_tables=torch.zeros(len(kv_lens), 0, dtype=torch.int32, device=device),
        cu_seqlens_q=cu_seqlens_q,
        kv_lens=kv_lens,
    )
    assert ops.attention(backend.put(torch.zeros(0, 9, 64)), cache, step, 0.125).shape == (0, 9, 64)


@pytest.mark.parametrize("chunk", [1, 16, 100, 512])
def test_a_long_prompt_is_the_same_in_chunks_of_any_size(backend: Backend, chunk: int) -> None:
    size = 530 if chunk > 1 else 150  # more than four parts of a context, and an odd number of its pieces
    heads, block_size = backend.heads(Heads(9, 3, 64)), backend.device.default_block_size
    whole = attend_on(backend, (Row(0, size),), heads, block_size)
    chunks = [
        attend_on(backend, (Row(start, min(chunk, size - start)),), heads, block_size, seed=start)
        for start in range(0, size, chunk)
    ]
    backend.assert_same_row(torch.cat(chunks), whole)


@pytest.mark.parametrize("filler", [1e4, math.inf, math.nan])
def test_what_others_left_in_the_cache_never_reaches_a_row(backend: Backend, filler: float) -> None:
    step = build_step(ROWS["mixed"] + ROWS["decodes_of_many_lengths"], Heads(), backend.device.default_block_size)
    clean = attend(backend.ops, step, backend.device.torch_device)
    assert torch.equal(attend(backend.ops, step, backend.device.torch_device, filler), clean)


def test_a_row_of_nans_stays_alone(backend: Backend) -> None:
    if not backend.shows_nan:
        pytest.skip("the device turns NaN into 0")
    rows = ROWS["decodes_of_many_lengths"]
    step = build_step(rows, Heads(), backend.device.default_block_size)
    ill = 2  # the longest, so every other row has padding beside it
    first = sum(row.kv_len for row in rows[:ill])
    k = step.k.clone()
    k[first : first + rows[ill].kv_len] = math.nan
    clean = attend(backend.ops, step, backend.device.torch_device)
    actual = attend(backend.ops, replace(step, k=k), backend.device.torch_device)
    assert actual[ill].isnan().all()
    others = [row for row in range(len(rows)) if row != ill]
    assert torch.equal(actual[others], clean[others])


lengths = st.one_of(st.integers(0, 40), st.sampled_from([15, 16, 31, 32, 127, 128, 129, 400]))
decode_rows = st.builds(Row, cached=lengths, new=st.just(1), seed=st.integers(0, 99))
chunk_rows = st.builds(Row, cached=lengths, new=st.integers(2, 40), seed=st.integers(0, 99))
any_rows = st.one_of(decode_rows, decode_rows, chunk_rows)


# Computed token by token, and by tiles of products where the processor has them.
WAYS = pytest.mark.parametrize("heads", [Heads(6, 2, 16), Heads(9, 3, 64)], ids=str)


@WAYS
@PROPERTY
@given(
    row=any_rows, before=st.lists(any_rows, max_size=8), after=st.lists(any_rows, max_size=8), seed=st.integers(0, 9)
)
def test_a_row_is_the_same_alone_and_among_neighbours(
    backend: Backend, heads: Heads, *, row: Row, before: list[Row], after: list[Row], seed: int
) -> None:
    heads, block_size = backend.heads(heads), backend.device.default_block_size
    alone = attend_on(backend, (row,), heads, block_size)
    crowd = attend_on(backend, (*before, row, *after), heads, block_size, seed)
    first = sum(neighbour.new for neighbour in before)
    backend.assert_same_row(crowd[first : first + row.new], alone)


@WAYS
@PROPERTY
@given(cuts=st.lists(st.integers(1, 60), min_size=2, max_size=5), seed=st.integers(0, 99))
def test_chunks_give_what_the_whole_gives(backend: Backend, heads: Heads, cuts: list[int], seed: int) -> None:
    heads, block_size = backend.heads(heads), backend.device.default_block_size
    whole = attend_on(backend, (Row(0, sum(cuts), seed),), heads, block_size)
    starts = [sum(cuts[:index]) for index in range(len(cuts))]
    chunks = [
        attend_on(backend, (Row(start, size, seed),), heads, block_size, seed=size)
        for start, size in zip(starts, cuts, strict=True)
    ]
    backend.assert_same_row(torch.cat(chunks), whole)
