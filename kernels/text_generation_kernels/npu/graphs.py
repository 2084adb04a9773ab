"""Decode steps captured as NPU graphs, one for each of a few numbers of rows, and replayed.

A step of fewer rows is padded with rows that write to the spare block and read one token of block 0. A replay reads its
inputs from fixed memory, and the lengths of its rows from what `GraphTasks` gave its attention calls before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from text_generation_kernels.errors import first_line
from text_generation_kernels.interface import (
    CapturedStep,
    CaptureRefused,
    StepFunction,
    StepInputs,
    StepMetadata,
)
from text_generation_kernels.npu.graph_tasks import Task
from text_generation_kernels.npu.ops import NpuOps

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Where graphs read their inputs: for the largest number of rows; smaller graphs read the beginnings."""

    token_ids: Tensor  # [most] int64, as are positions and sampled
    positions: Tensor
    sampled: Tensor
    slot_mapping: Tensor  # [most] int32
    block_tables: Tensor  # [most, max_blocks] int32

    def fill(self, inputs: StepInputs, size: int) -> None:
        """Write a step of at most `size` rows, and padding up to there."""
        step, num_rows = inputs.step, inputs.step.num_rows
        for buffer, values, padding in (
            (self.token_ids, inputs.token_ids, 0),
            (self.positions, step.positions, 0),
            (self.slot_mapping, step.slot_mapping, -1),
        ):
            buffer[:num_rows].copy_(values)
            buffer[num_rows:size].fill_(padding)
        self.block_tables[:num_rows, : step.block_tables.shape[1]].copy_(step.block_tables)
        self.block_tables[num_rows:size].fill_(0)
        self.sampled[: len(inputs.sampled)].copy_(inputs.sampled)
        self.sampled[len(inputs.sampled) : size].fill_(0)

    def inputs(self, size: int) -> StepInputs:
        """A step of so many rows that reads these buffers. Made anew for each use: ops remember steps by identity."""
        step = StepMetadata(
            positions=self.positions[:size],
            slot_mapping=self.slot_mapping[:size],
            block_tables=self.block_tables[:size],
            cu_seqlens_q=tuple(range(size + 1)),
            kv_lens=(1,) * size,
        )
        return StepInputs(self.token_ids[:size], step, self.sampled[:size])


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: Any
    logits: Tensor  # [size, vocab_size], written by each replay
    tasks: Sequence[Task]


class CapturedDecode(CapturedStep):
    """Graphs of one step function, by number of rows."""

    def __init__(self, torch_npu: Any, ops: NpuOps, buffers: _Buffers, graphs: dict[int, _Graph]) -> None:
        self.max_tokens = self.max_sampled = max(graphs)
        self._npu = torch_npu.npu
        self._ops = ops
        self._buffers = buffers
        self._graphs = dict(sorted(graphs.items()))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self._graphs)

    def fits(self, inputs: StepInputs) -> bool:
        """Decode steps only: a prompt's rows have lengths of their own."""
        step = inputs.step
        return (
            super().fits(inputs)
            and step.num_tokens == step.num_rows
            and step.block_tables.shape[1] <= self._buffers.block_tables.shape[1]
        )

    def __call__(self, inputs: StepInputs) -> Tensor:
        num_rows = inputs.step.num_rows
        size = next(size for size in self._graphs if size >= max(num_rows, len(inputs.sampled)))
        captured = self._graphs[size]
        # The last replay may still read the lengths that are replaced now.
        self._npu.current_stream().synchronize()
        self._buffers.fill(inputs, size)
        self._ops.tasks.update(captured.tasks, [*inputs.step.kv_lens, *[1] * (size - num_rows)])
        captured.graph.replay()
        return captured.logits[: len(inputs.sampled)]


def capture_decode(
    torch_npu: Any, ops: NpuOps, function: StepFunction, sizes: Sequence[int], max_blocks: int
) -> CapturedDecode:
    """Capture a step function.

    Args:
        sizes: numbers of rows, each at least 1.
        max_blocks: of the longest row.
    Raises: CaptureRefused.
    """
    if not ops.family.captures_graphs:
        raise CaptureRefused(f"graphs are not used on family {ops.family.name}")
    if not sizes:
        raise CaptureRefused("--cuda-graphs names no size")
    buffers = _new_buffers(ops.torch_device, max(sizes), max_blocks)
    graphs: dict[int, _Graph] = {}
    pool: Any = None
    for size in sorted(set(sizes), reverse=True):  # the largest first: smaller ones then live in its memory
        try:
            graphs[size] = _capture(torch_npu.npu, ops, function, partial(buffers.inputs, size), pool)
        except RuntimeError as error:  # too few streams, a launch mode that excludes graphs: the runtime's own words
            reason = first_line(error)
            if not graphs:
                raise CaptureRefused(f"a graph of {size} rows cannot be captured: {reason}") from error
            logger.warning("decode steps of up to %d rows run op by op: no graph for them (%s)", size, reason)
            break
        pool = pool or graphs[size].graph.pool()
    return CapturedDecode(torch_npu, ops, buffers, graphs)


def _capture(npu: Any, ops: NpuOps, function: StepFunction, inputs: Callable[[], StepInputs], pool: Any) -> _Graph:
    function(inputs())  # what is made once is made now
    npu.synchronize()
    graph = npu.NPUGraph()
    tasks = ops.tasks.begin()
    try:
        with npu.graph(graph, pool=pool):
            logits = function(inputs())
    finally:
        ops.tasks.end()
    return _Graph(graph, logits, tasks)


def _new_buffers(device: torch.device, most: int, max_blocks: int) -> _Buffers:
    ids = [torch.zeros(most, dtype=torch.int64, device=device) for _ in range(3)]
    slots = torch.full((most,), -1, dtype=torch.int32, device=device)
    tables = torch.zeros(most, max_blocks, dtype=torch.int32, device=device)
    return _Buffers(ids[0], ids[1], ids[2], slots, tables)
