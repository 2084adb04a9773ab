"""Sizing: what fits, what does not, and what is said then."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.checkpoints import make_checkpoint
from tests.support.inprocess import load_engine
from text_generation_server.memory_budget import MemoryBudget
from text_generation_server.warmup import (
    STEP_SECONDS,
    NotEnoughMemory,
    Wanted,
    _choose_step_tokens,
    choose_shape,
    warm_up,
)

GIB = 2**30


def test_unset_limits_follow_the_model_and_the_memory() -> None:
    wanted = Wanted(0, max_sequences=4, max_total_tokens=0, max_batch_total_tokens=0)
    roomy = choose_shape(wanted, model_max_tokens=2048, block_size=16, block_bytes=1000, usable_bytes=10_000_000)
    assert (roomy.max_total_tokens, roomy.num_blocks) == (2048, 4 * 128)
    tight = choose_shape(wanted, model_max_tokens=2048, block_size=16, block_bytes=1000, usable_bytes=64_000)
    assert (tight.max_total_tokens, tight.num_blocks) == (1024, 64)


def test_asked_for_capacity_is_an_upper_bound() -> None:
    wanted = Wanted(0, max_sequences=8, max_total_tokens=100, max_batch_total_tokens=250)
    shape = choose_shape(wanted, model_max_tokens=2048, block_size=16, block_bytes=1000, usable_bytes=10_000_000)
    assert shape.num_blocks == 15


def test_limits_that_cannot_fit_name_bytes_and_flag() -> None:
    """G37."""
    wanted = Wanted(0, max_sequences=8, max_total_tokens=2000, max_batch_total_tokens=0)
    with pytest.raises(NotEnoughMemory) as caught:
        choose_shape(wanted, model_max_tokens=2048, block_size=16, block_bytes=1000, usable_bytes=100_000)
    assert str(caught.value) == (
        "Not enough memory to handle `max_total_tokens=2000`: its KV cache needs 125,000 bytes and 100,000 are "
        "available (1600 tokens); lower --max-total-tokens to 1600 or less, or raise --max-batch-total-tokens or "
        "MAX_MEMORY_GB"
    )


@given(
    max_total=st.integers(0, 3000),
    max_sequences=st.integers(1, 300),
    max_batch_total=st.integers(0, 100_000),
    model_max=st.integers(1, 4096),
    block_size=st.sampled_from([16, 32, 128]),
    usable_blocks=st.integers(0, 5000),
)
def test_accepted_shape_holds_one_longest_sequence_and_stays_within_memory(
    *, max_total: int, max_sequences: int, max_batch_total: int, model_max: int, block_size: int, usable_blocks: int
) -> None:
    wanted = Wanted(0, max_sequences, max_total, max_batch_total)
    try:
        shape = choose_shape(wanted, model_max, block_size, 1000, usable_blocks * 1000)
    except NotEnoughMemory:
        return
    assert 1 <= shape.max_total_tokens <= shape.num_blocks * block_size
    assert shape.num_blocks <= usable_blocks
    assert not max_batch_total or shape.num_blocks * block_size <= max_batch_total
    assert not max_total or shape.max_total_tokens == max_total
    assert shape.num_blocks * block_size < shape.max_total_tokens * max_sequences + block_size * max_sequences


def test_step_budget_is_the_largest_under_half_a_second() -> None:
    chosen = _choose_step_tokens(lambda num_tokens: num_tokens / 600, lambda value: value)
    assert chosen == 256
    assert chosen / 600 <= STEP_SECONDS < 2 * chosen / 600
    assert _choose_step_tokens(lambda num_tokens: 9.0, lambda value: value) == 64


def test_slowest_rank_decides_the_step_budget() -> None:
    others = iter([0.1, 9.0, 9.0])
    chosen = _choose_step_tokens(lambda num_tokens: 0.0, lambda value: min(value, -int(1e6 * next(others))))
    assert chosen == 128


def test_no_step_is_run_that_would_surely_take_too_long() -> None:
    """A second saved at each start: 512 tokens took 0.4 s, so 1024 need not be tried."""
    tried: list[int] = []

    def seconds(num_tokens: int) -> float:
        tried.append(num_tokens)
        return num_tokens / 1280

    assert _choose_step_tokens(seconds, lambda value: value) == 512
    assert tried == [64, 128, 256, 512]


def test_one_disturbed_measurement_does_not_shrink_the_budget() -> None:
    times = iter([0.1, 0.1, 9.0, 0.1, 9.0, 9.0])
    assert _choose_step_tokens(lambda num_tokens: next(times), lambda value: value) == 256


def test_warm_up_of_a_real_model_allocates_what_it_says(tmp_path: Path) -> None:
    engine = load_engine(make_checkpoint(tmp_path, "llama"))
    sizing = warm_up(engine, Wanted(0, 4, 0, 0), MemoryBudget())
    assert sizing.shape.max_total_tokens == 512
    assert sizing.shape.num_blocks == 4 * 32
    assert sizing.kv_cache_bytes == 128 * engine.block_bytes
    assert sizing.max_batch_prefill_tokens >= 64


def test_warm_up_refuses_more_positions_than_the_model_has(tmp_path: Path) -> None:
    engine = load_engine(make_checkpoint(tmp_path, "llama"))
    with pytest.raises(NotEnoughMemory, match=r"more than the model's 512 positions; lower --max-total-tokens to 512"):
        warm_up(engine, Wanted(64, 4, 513, 0), MemoryBudget())
