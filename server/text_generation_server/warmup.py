"""Sizing: how many tokens one step may have, and how many blocks the KV cache gets.

The largest step is really run, and the cache gets what is then left: limits that are accepted here hold later. All
ranks must come to the same numbers, so each figure is the smallest of all ranks'.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from text_generation_proto import generate_pb2 as pb
from text_generation_server.engine import CacheShape, Engine
from text_generation_server.memory_budget import MemoryBudget, cache_bytes

logger = logging.getLogger(__name__)

# One step without a budget of its own stays under this, so that streams of others do not stutter.
STEP_SECONDS = 0.5
# Budgets tried, in tokens. Below the first, prompts crawl; beyond the last, nothing is gained on any device known.
_BUDGETS = (64, 128, 256, 512, 1024, 2048, 4096)
# A step whose weights are read once for all its rows may take this many times as long as one row's, and guesses in it
# still pay if every third is right.
_GUESSING_SLOWDOWN = 1.4
_GUESSING_TOKENS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_GREEDY = pb.SamplingParameters()
_COSTLY_SAMPLING = pb.SamplingParameters(do_sample=True, temperature=1.0, top_p=0.9, typical_p=0.9)


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
    longest = min(wanted.max_total_tokens or model.max_positions, wanted.max_batch_prefill_tokens or _BUDGETS[-1])
    device.reset_peak_memory()
    runner = _StepRunner(engine, wanted.max_sequences, longest)
    prefill_tokens = wanted.max_batch_prefill_tokens
    if prefill_tokens:
        runner.prompt_seconds(prefill_tokens)
    else:
        prefill_tokens = _choose_step_tokens(runner.prompt_seconds, group.all_reduce_min)
    runner.largest_decode_seconds()
    max_guessing_tokens = 0
    if wanted.max_guesses:
        paying = _choose_guessing_tokens(runner.decode_seconds, wanted.max_sequences, group.all_reduce_min)
        max_guessing_tokens = max(paying, 1 + wanted.max_guesses)
    working_bytes = device.peak_memory_bytes()
    runner.close()
    device.synchronize()

    now = device.memory()
    free_bytes = max(now.free_bytes - working_bytes, 0)
    usable = cache_bytes(
        device.kind,
        total_bytes=now.total_bytes,
        free_bytes=free_bytes,
        used_bytes=device.used_memory_bytes() + working_bytes,
        budget=budget,
        world_size=group.world_size,
    )
    usable = max(usable - device.ops.spare_kv_blocks * engine.block_bytes, 0)
    usable = group.all_reduce_min(usable)
    shape = choose_shape(wanted, model.max_positions, engine.block_size, engine.block_bytes, usable)
    engine.allocate(shape)
    return Sizing(shape, prefill_tokens, free_bytes, shape.num_blocks * engine.block_bytes, max_guessing_tokens)


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


class _StepRunner:
    """Runs steps of made-up tokens on a small cache of its own. Rows share its blocks: values do not matter here."""

    def __init__(self, engine: Engine, max_sequences: int, longest: int) -> None:
        self._engine = engine
        self._max_sequences = max_sequences
        self._longest = longest
        engine.allocate(CacheShape(-(-longest // engine.block_size), engine.block_size, max_sequences, longest))

    def prompt_seconds(self, num_tokens: int) -> float:
        """Seconds of one step over so many prompt tokens, in as few prompts as the longest one allows."""
        lengths = [self._longest] * min(num_tokens // self._longest, self._max_sequences)
        if num_tokens % self._longest and len(lengths) < self._max_sequences:
            lengths.append(num_tokens % self._longest)
        return self._run(lengths, _COSTLY_SAMPLING)

    def largest_decode_seconds(self) -> float:
        """Seconds of one step of as many decode rows as may run at once, each sampling over the whole vocabulary."""
        return self._run([1] * self._max_sequences, _COSTLY_SAMPLING)

    def decode_seconds(self, num_rows: int) -> float:
        """Seconds of one step of so many decode rows, greedy."""
        return self._run([1] * num_rows, _GREEDY)

    def close(self) -> None:
        self._engine.free()

    def _run(self, lengths: list[int], sampling: pb.SamplingParameters) -> float:
        self._engine.reset()
        request = pb.StepRequest(
            admit=[
                pb.Admission(
                    table_index=index,
                    token_ids=[0] * length,
                    num_prompt_tokens=length,
                    block_ids=range(-(-length // self._engine.block_size)),
                    sampling=sampling,
                )
                for index, length in enumerate(lengths)
            ],
            row_table_index=range(len(lengths)),
            row_num_tokens=lengths,
        )
        started = time.perf_counter()
        self._engine.step(request)
        return time.perf_counter() - started
