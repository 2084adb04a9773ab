"""How a step's rows are split among ways to compute attention, once a step.

A row is a decode (one token), a prefill (all tokens that it sees are in the step) or a chunk (some were cached before).
Consecutive rows that are computed the same way form a run: decode rows come first in a step and prompts behind them, so
there are few. Lengths are host lists throughout; nothing is read back from the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from text_generation_kernels.dtypes import dtype_name
from text_generation_kernels.interface import StepMetadata
from text_generation_kernels.npu.candidates import Candidate, Choice
from text_generation_kernels.npu.kv_cache import Layout, NpuKVCache

Kind = Literal["decode", "prefill", "chunk"]
# Prompts are told apart by length only where a mask as large as the prompt squared would be needed.
_SMALLEST_LONGEST = 2048


@dataclass(frozen=True, slots=True)
class HeadShape:
    """What decides which way of computing attention will do."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    layout: Layout
    dtype: torch.dtype
    longest: int = 0  # of prefill rows: their length, rounded up to a power of two, at least 2048

    def __str__(self) -> str:
        heads = f"{self.num_heads} heads over {self.num_kv_heads} of {self.head_dim}"
        name = dtype_name(self.dtype)
        return f"{heads}, {name}, blocks of {self.block_size} in {self.layout}"


def nd_refusal(shape: HeadShape) -> str | None:
    """Why an op that knows nothing of NZ cannot read a cache."""
    return None if shape.layout == "nd" else "it reads ND caches only"


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive rows that are computed together. Kept for the whole step, so `memo` serves all layers."""

    first_token: int  # in the flat batch
    end_token: int
    block_tables: Tensor  # [num_rows, max_blocks] int32 on the device
    cu_seqlens_q: tuple[int, ...]  # [num_rows + 1], starts with 0
    kv_lens: tuple[int, ...]
    memo: dict[str, Any] = field(default_factory=dict)  # what a candidate made of the lengths

    @property
    def num_rows(self) -> int:
        return len(self.kv_lens)

    @property
    def num_tokens(self) -> int:
        return self.end_token - self.first_token

    @property
    def query_lens(self) -> list[int]:
        return [end - start for start, end in zip(self.cu_seqlens_q, self.cu_seqlens_q[1:], strict=False)]

    def parts(self, most: int) -> tuple[Run, ...]:
        """Runs of at most so many rows, whose tokens are counted from this run's first; the same for all layers."""
        parts: tuple[Run, ...] = self.remembered(f"parts of {most}", lambda: tuple(self._cut(most)))
        return parts

    def remembered(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]

    def _cut(self, most: int) -> Iterator[Run]:
        for first in range(0, self.num_rows, most):
            end = min(first + most, self.num_rows)
            start, stop = self.cu_seqlens_q[first], self.cu_seqlens_q[end]
            lens = tuple(token - start for token in self.cu_seqlens_q[first : end + 1])
            yield Run(start, stop, self.block_tables[first:end], lens, self.kv_lens[first:end])


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys and values that a run's own tokens have just written, where they are at hand: [num_tokens, heads, dim]."""

    k: Tensor
    v: Tensor


# (q of the run [num_tokens, num_heads, head_dim] contiguous, cache, run, scale, the run's own keys or None) -> like q
Attend = Callable[[Tensor, NpuKVCache, Run, float, Keys | None], Tensor]
AttentionChoice = Choice[Attend, HeadShape]
AttentionCandidate = Candidate[Attend, HeadShape]


def in_parts(q: Tensor, run: Run, most: int, attend: Callable[[Tensor, Run], Tensor]) -> Tensor:
    """Attention over at most so many rows of a run at once."""
    return joined([attend(q[part.first_token : part.end_token], part) for part in run.parts(most)])


def joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def split(
    step: StepMetadata, shape: HeadShape, choices: Mapping[Kind, AttentionChoice], *, has_keys: bool
) -> tuple[tuple[AttentionCandidate, Run], ...]:
    """The step's runs in order, each with what computes it.

    Args:
        has_keys: whether the step's own keys and values are at hand. Without them a prefill in NZ is a chunk, whose
            keys are all read from the cache.
    Raises: NoCandidate.
    """
    runs: list[tuple[AttentionCandidate, int, int]] = []
    for row in range(step.num_rows):
        candidate = _candidate(step, row, shape, choices, has_keys)
        if runs and runs[-1][0].run == candidate.run:
            runs[-1] = (candidate, runs[-1][1], row + 1)
        else:
            runs.append((candidate, row, row + 1))
    return tuple((candidate, _run(step, first, end)) for candidate, first, end in runs)


def _candidate(
    step: StepMetadata, row: int, shape: HeadShape, choices: Mapping[Kind, AttentionChoice], has_keys: bool
) -> AttentionCandidate:
    num_tokens = step.cu_seqlens_q[row + 1] - step.cu_seqlens_q[row]
    if num_tokens == 1:
        return choices["decode"].select(shape)
    if num_tokens < step.kv_lens[row] or (shape.layout == "nz" and not has_keys):
        return choices["chunk"].select(shape)
    longest = max(_SMALLEST_LONGEST, 1 << (num_tokens - 1).bit_length())
    return choices["prefill"].select(replace(shape, longest=longest))


def _run(step: StepMetadata, first: int, end: int) -> Run:
    start = step.cu_seqlens_q[first]
    return Run(
        first_token=start,
        end_token=step.cu_seqlens_q[end],
        block_tables=step.block_tables[first:end],
        cu_seqlens_q=tuple(token - start for token in step.cu_seqlens_q[first : end + 1]),
        kv_lens=step.kv_lens[first:end],
    )
