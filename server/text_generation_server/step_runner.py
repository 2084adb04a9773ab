"""Steps of made-up tokens, run before anything is served: how long they take, and whether they fit the memory.

Knows nothing of how the cache is sized; `warmup` asks, and decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from text_generation_proto import generate_pb2 as pb
from text_generation_server.engine import CacheShape, Engine

_GREEDY = pb.SamplingParameters()
_COSTLY_SAMPLING = pb.SamplingParameters(
    do_sample=True,
    temperature=1.0,
    top_p=0.9,
    typical_p=0.9,
    repetition_penalty=1.1,  # with a penalty there are two tables of all rows' logits
    frequency_penalty=0.1,
)


@dataclass(frozen=True, slots=True)
class StepSize:
    """Prompt tokens, and rows of which each samples."""

    num_tokens: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What the made-up sequences have to keep to."""

    max_sequences: int
    max_total_tokens: int
    max_cached_tokens: int


class StepRunner:
    """Runs steps on a small cache of its own, whose blocks the rows share: values do not matter here.

    Args:
        largest: tokens of the largest step to be run.
    """

    def __init__(self, engine: Engine, limits: Limits, largest: int) -> None:
        self._engine = engine
        self._limits = limits
        self._longest_prompt = min(limits.max_total_tokens, largest)
        # On an NPU attention may gather keys, so the largest step sees as many as one sequence can have. A quarter of
        # what is free is enough of a cache for that, since what is gathered is one layer's; the steps need room, too.
        self._longest = self._longest_prompt
        if engine.device.kind != "cpu":
            free_blocks = engine.device.memory().free_bytes // 4 // engine.block_bytes
            free_tokens = engine.group.all_reduce_min(free_blocks * engine.block_size)
            self._longest = max(self._longest_prompt, min(limits.max_total_tokens, free_tokens))
        self._num_blocks = -(-self._longest // engine.block_size)
        shape = CacheShape(self._num_blocks, engine.block_size, limits.max_sequences, limits.max_total_tokens)
        engine.allocate(shape)

    @property
    def cache_bytes(self) -> int:
        return (self._num_blocks + self._engine.device.ops.spare_kv_blocks) * self._engine.block_bytes

    def prompt_seconds(self, num_tokens: int) -> float:
        """Seconds of one step over so many prompt tokens, in as few prompts as the longest one allows."""
        longest, most = self._longest_prompt, self._limits.max_sequences
        lengths = [longest] * min(num_tokens // longest, most)
        if num_tokens % longest and len(lengths) < most:
            lengths.append(num_tokens % longest)
        return self._run(lengths, _COSTLY_SAMPLING)

    def decode_seconds(self, num_rows: int) -> float:
        """Seconds of one step of so many decode rows, greedy."""
        return self._run([1] * num_rows, _GREEDY)

    def run_largest(self, size: StepSize) -> None:
        """Run the step of this size that takes most memory: all rows sample over the whole vocabulary, and on an NPU
        prompts end where the longest sequence does, and decode rows see as much as can be cached at once. All ranks
        of a group call it together."""
        if self._engine.device.kind == "cpu":
            self._run([1] * size.num_rows, _COSTLY_SAMPLING)
            return
        longest = self._longest
        prompts = [longest] * (size.num_tokens // longest)
        if size.num_tokens % longest:
            prompts.append(size.num_tokens % longest)
        prompts = prompts[: size.num_rows]
        num_decoding = size.num_rows - len(prompts)
        num_long = min(num_decoding, max(0, self._cached_tokens() // longest - len(prompts)))
        kv_lens = [longest] * num_long + [1] * (num_decoding - num_long) + [longest] * len(prompts)
        self._run([1] * num_decoding + prompts, _COSTLY_SAMPLING, kv_lens)

    def _cached_tokens(self) -> int:
        """As many as memory has room for, on the rank that has least."""
        engine = self._engine
        fitting = engine.device.memory().free_bytes // engine.block_bytes * engine.block_size
        return engine.group.all_reduce_min(min(fitting, self._limits.max_cached_tokens))

    def _run(
        self, lengths: Sequence[int], sampling: pb.SamplingParameters, kv_lens: Sequence[int] | None = None
    ) -> float:
        self._engine.reset()
        block_size = self._engine.block_size
        request = pb.StepRequest(
            admit=[
                pb.Admission(
                    table_index=index,
                    token_ids=[0] * kv_len,
                    num_prompt_tokens=kv_len,
                    num_computed_tokens=kv_len - length,
                    block_ids=range(-(-kv_len // block_size)),
                    sampling=sampling,
                )
                for index, (length, kv_len) in enumerate(zip(lengths, kv_lens or lengths, strict=True))
            ],
            row_table_index=range(len(lengths)),
            row_num_tokens=lengths,
        )
        started = time.perf_counter()
        self._engine.step(request)
        return time.perf_counter() - started


def largest_fitting(failed: StepSize, runs: Callable[[StepSize], bool]) -> StepSize | None:
    """The largest step that runs where one did not: with fewer prompt tokens, or else with fewer rows, too.

    Returns: None if none does. Found by halving, to a sixteenth of what failed.
    """
    rows = failed.num_rows
    num_tokens = _largest(failed.num_tokens, lambda fewer: runs(StepSize(fewer, rows)))
    if num_tokens:
        return StepSize(num_tokens, rows)
    num_tokens = max(1, failed.num_tokens // 16)
    num_rows = _largest(rows, lambda fewer: runs(StepSize(num_tokens, fewer)))
    return StepSize(num_tokens, num_rows) if num_rows else None


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number below a limit that fits; 0 if none was found."""
    low, high = 0, limit
    while high - low > max(1, limit // 16):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator has refused: torch has a type for it, older releases of torch_npu a sentence only."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)
