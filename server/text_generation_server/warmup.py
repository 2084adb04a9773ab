"""Sizing: how many tokens one step may have, and how many blocks the KV cache gets.

The largest step is really run, and the cache gets what is then left: limits that are accepted here hold later. All
ranks must come to the same numbers, so each figure is the smallest of all ranks'.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from text_generation_kernels.errors import first_line
from text_generation_server.engine import CacheShape, Engine
from text_generation_server.memory_budget import MemoryBudget, MemorySum, cache_bytes
from text_generation_server.step_runner import Limits, StepRunner, StepSize, is_out_of_memory, largest_fitting

logger = logging.getLogger(__name__)

# One step without a budget of its own stays under this, so that streams of others do not stutter.
STEP_SECONDS = 0.5
# Budgets tried, in tokens. Below the first, prompts crawl; beyond the last, nothing is gained on any device known.
_BUDGETS = (64, 128, 256, 512, 1024, 2048, 4096)
# A step whose weights are read once for all its rows may take this many times as long as one row's, and guesses in it
# still pay if every third is right.
_GUESSING_SLOWDOWN = 1.4
_GUESSING_TOKENS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


class NotEnoughMemory(RuntimeError):
    """The limits do not fit the memory. The message is one line with the numbers and the flag to lower."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Limits as asked for; 0 leaves a choice to the shard."""

    max_batch_prefill_tokens: int
    max_sequences: int
    max_total_tokens: int
    max_batch_total_tokens: int
    max_guesses: int = 0  # tokens to be guessed ahead in a row; this many are always wanted of a sequence alone


@dataclass(frozen=True, slots=True)
class Sizing:
    shape: CacheShape
    max_batch_prefill_tokens: int
    free_bytes: int
    kv_cache_bytes: int
    max_guessing_tokens: int  # rows and guesses of a step in which guessing pays; 0: not asked for


def choose_shape(
    wanted: Wanted, model_max_tokens: int, block_size: int, block_bytes: int, usable_bytes: int
) -> CacheShape:
    """Blocks and longest sequence for the memory there is.

    Raises: NotEnoughMemory, with the numbers, when one longest sequence does not fit.
    """
    usable_blocks = usable_bytes // block_bytes
    if wanted.max_batch_total_tokens:
        usable_blocks = min(usable_blocks, wanted.max_batch_total_tokens // block_size)
    # Unset: as long as the model allows, or as the cache holds.
    max_total_tokens = wanted.max_total_tokens or min(model_max_tokens, usable_blocks * block_size)
    needed_blocks = max(1, -(-max_total_tokens // block_size))
    if needed_blocks > usable_blocks:
        fitting = usable_blocks * block_size
        remedy = (
            f"lower --max-total-tokens to {fitting} or less, or raise --max-batch-total-tokens or MAX_MEMORY_GB"
            if fitting
            else "free memory on the device, raise MAX_MEMORY_GB, or use more shards (--num-shard)"
        )
        raise NotEnoughMemory(
            f"Not enough memory to handle `max_total_tokens={max_total_tokens}`: its KV cache needs "
            f"{needed_blocks * block_bytes:,} bytes and {usable_blocks * block_bytes:,} are available "
            f"({fitting} tokens); {remedy}"
        )
    # More than every sequence at its longest could never be used.
    num_blocks = min(usable_blocks, needed_blocks * wanted.max_sequences)
    return CacheShape(num_blocks, block_size, wanted.max_sequences, max_total_tokens)


def warm_up(engine: Engine, wanted: Wanted, budget: MemoryBudget) -> Sizing:
    """Run the largest step, size the cache from what is left, and allocate it. Called by all ranks at once.

    Raises: NotEnoughMemory.
    """
    engine.free()
    model, group, device = engine.model, engine.group, engine.device
    if wanted.max_total_tokens > model.max_positions:
        raise NotEnoughMemory(
            f"`max_total_tokens={wanted.max_total_tokens}` is more than the model's {model.max_positions} positions; "
            f"lower --max-total-tokens to {model.max_positions} or less"
        )
    device.reset_peak_memory()
    held = device.used_memory_bytes() - device.memory().outside_bytes
    steps = _run_largest_steps(engine, wanted)
    device.synchronize()

    now = device.memory()
    free_bytes = max(now.free_bytes - steps.working_bytes, 0)
    usable = cache_bytes(
        device.kind,
        total_bytes=now.total_bytes,
        free_bytes=free_bytes,
        used_bytes=device.used_memory_bytes() + steps.working_bytes,
        budget=budget,
        world_size=group.world_size,
    )
    usable = max(usable - device.ops.spare_kv_blocks * engine.block_bytes, 0)
    usable = group.all_reduce_min(usable)
    memory_sum = MemorySum(
        total=now.total_bytes,
        cap=budget.cap_bytes(now.total_bytes),
        held=held,
        outside=now.outside_bytes,
        step=steps.working_bytes,
        held_back=budget.held_back_bytes(device.kind, now.total_bytes),
        usable=usable,
    )
    try:
        shape = choose_shape(wanted, model.max_positions, engine.block_size, engine.block_bytes, usable)
    except NotEnoughMemory:
        logger.error("%s", memory_sum.line(0, 0))
        raise
    engine.allocate(shape)
    engine.check_replays()
    device.settle()
    kv_cache_bytes = shape.num_blocks * engine.block_bytes
    logger.info("%s", memory_sum.line(kv_cache_bytes, shape.num_blocks * shape.block_size))
    return Sizing(shape, steps.max_batch_prefill_tokens, free_bytes, kv_cache_bytes, steps.max_guessing_tokens)


@dataclass(frozen=True, slots=True)
class _LargestSteps:
    """What running the largest steps has shown."""

    max_batch_prefill_tokens: int
    max_guessing_tokens: int
    working_bytes: int  # the most that is held beside what was there before and the cache


def _run_largest_steps(engine: Engine, wanted: Wanted) -> _LargestSteps:
    """Run the largest that serving may have to, on a small cache that is gone afterwards.

    Raises: NotEnoughMemory, when that does not fit beside the weights.
    """
    device, group = engine.device, engine.group
    limits = Limits(
        max_sequences=wanted.max_sequences,
        max_total_tokens=wanted.max_total_tokens or engine.model.max_positions,
        max_cached_tokens=wanted.max_batch_total_tokens or sys.maxsize,
    )
    tried = StepSize(wanted.max_batch_prefill_tokens or _BUDGETS[-1], wanted.max_sequences)
    try:
        with _runner(engine, limits, tried) as runner:
            if not wanted.max_batch_prefill_tokens:
                chosen = _choose_step_tokens(runner.prompt_seconds, group.all_reduce_min)
                tried = StepSize(chosen, wanted.max_sequences)
            elif device.kind == "cpu":
                runner.prompt_seconds(tried.num_tokens)
            runner.run_largest(tried)
            max_guessing_tokens = 0
            if wanted.max_guesses:
                paying = _choose_guessing_tokens(runner.decode_seconds, wanted.max_sequences, group.all_reduce_min)
                max_guessing_tokens = max(paying, 1 + wanted.max_guesses)
            working_bytes = device.peak_memory_bytes()
            if device.kind != "cpu":  # whose pages take no memory before they are written to
                working_bytes = max(working_bytes - runner.cache_bytes, 0)
            return _LargestSteps(tried.num_tokens, max_guessing_tokens, working_bytes)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        told = first_line(error)

    # Out here nothing holds the failed step's tensors any more.
    def runs(size: StepSize) -> bool:
        try:
            with _runner(engine, replace(limits, max_sequences=size.num_rows), size) as runner:
                runner.run_largest(size)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return False
        return True

    # Ranks cannot search: they would fail at different places, and wait for each other.
    fitting = largest_fitting(tried, runs) if group.world_size == 1 else None
    raise NotEnoughMemory(_step_does_not_fit(tried, fitting, told))


@contextmanager
def _runner(engine: Engine, limits: Limits, size: StepSize) -> Iterator[StepRunner]:
    """A runner for steps up to a size; what it has allocated is free afterwards."""
    try:
        yield StepRunner(engine, limits, size.num_tokens)
    finally:
        engine.free()


def _step_does_not_fit(tried: StepSize, fitting: StepSize | None, told: str) -> str:
    """The line for whoever started the server, with the largest step that does fit where one was found."""
    remedy = "lower --max-batch-prefill-tokens or --max-concurrent-requests, or use more shards (--num-shard)"
    if fitting is not None:
        remedy = f"--max-batch-prefill-tokens {fitting.num_tokens} fits"
        if fitting.num_rows < tried.num_rows:
            remedy = f"--max-concurrent-requests {fitting.num_rows} with {remedy}"
    return (
        f"Not enough memory for a step of {tried.num_tokens} prompt tokens and {tried.num_rows} sequences beside the "
        f"weights; {remedy} ({told})"
    )


def _choose_step_tokens(seconds: Callable[[int], float], smallest_of_ranks: Callable[[int], int]) -> int:
    """The largest budget whose step stays under `STEP_SECONDS`, at least the smallest one.

    Ranks decide together after each step, because they must run the same steps.
    """

    def slowest_seconds(budget: int) -> float:
        return -smallest_of_ranks(-int(1e6 * seconds(budget))) / 1e6

    chosen = _BUDGETS[0]
    seconds(chosen)  # the first step pays for what is set up once
    for budget in _BUDGETS[1:]:
        # The better of two, since something else may have had the processor during one of them.
        if (took := slowest_seconds(budget)) > STEP_SECONDS and (took := slowest_seconds(budget)) > STEP_SECONDS:
            break
        chosen = budget
        # A step of a third of a second computes, and twice the tokens would take nearly twice as long.
        if took > STEP_SECONDS / 1.5:
            break
    return chosen


def _choose_guessing_tokens(
    seconds: Callable[[int], float], max_sequences: int, smallest_of_ranks: Callable[[int], int]
) -> int:
    """The most rows whose step takes at most `_GUESSING_SLOWDOWN` times one row's, at least one."""

    def microseconds(num_rows: int) -> int:
        return smallest_of_ranks(int(1e6 * min(seconds(num_rows) for _ in range(3))))

    limit = _GUESSING_SLOWDOWN * microseconds(1)
    chosen = 1
    for num_rows in _GUESSING_TOKENS:
        if num_rows > max_sequences or microseconds(num_rows) > limit:
            break
        chosen = num_rows
    return chosen
