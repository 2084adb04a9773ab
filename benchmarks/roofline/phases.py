"""A model's step taken apart: its recorded kernels by phase, each replayed alone, and the work that each must do.

Knows the recording of the native kernels, not the server: steps here are made up, of any rows and contexts.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor

from benchmarks.kernels import linear_weights
from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.interface import StepInputs, StepMetadata
from text_generation_kernels.native.capture import NativeStep, StepRecorder, example
from text_generation_kernels.native.library import Instruction, Op
from text_generation_kernels.native.ops import NativeCpuOps
from text_generation_server.models.causal_lm import CausalLM

LINEARS, HEAD, ATTENTION, ELEMENTWISE, SAMPLING = "linears", "head", "attention", "norms, rotary, rest", "sampling"
PHASES = (LINEARS, HEAD, ATTENTION, ELEMENTWISE, SAMPLING)
BLOCK_SIZE = 16
_MAX_TOKENS = 1024


@dataclass(frozen=True)
class Amount:
    """What a phase must do at least."""

    num_bytes: float  # from memory: weights, keys and values
    operations: float


@dataclass(frozen=True)
class Shape:
    """A step: so many rows, each of so many new tokens after `context` - `new_tokens` cached ones."""

    name: str
    num_rows: int
    context: int
    new_tokens: int = 1


class StepPhases:
    """One model's step, whole and by phase."""

    def __init__(self, model: CausalLM, num_blocks: int, max_rows: int) -> None:
        ops = model.device.ops
        assert isinstance(model.device, CpuDevice)
        assert isinstance(ops, NativeCpuOps)
        self._model = model
        self._ops = ops
        self._caches = [
            ops.new_kv_cache(num_blocks, BLOCK_SIZE, model.num_kv_heads_local, model.head_dim) for _ in model.layers
        ]
        # Keys and values that were written: the kernel would read pages that were not from one page of zeros.
        for cache in self._caches:
            cache.k.fill_(0.01)
            cache.v.fill_(0.01)
        self.instruction_set = ops.team.instruction_set
        inputs = example((3,), sampled=(2,))
        recorder = StepRecorder(inputs)
        ops.recorder = recorder
        try:
            result = recorder.result(self._logits(inputs))
        finally:
            ops.recorder = None
        self._steps: dict[str, NativeStep] = {}
        by_phase = defaultdict(list)
        for recorded in recorder.recorded:
            instruction = getattr(recorded, "instruction", None)
            if instruction is not None:  # what a group of ranks does between instructions, a lone one does not
                by_phase[self._phase(instruction)].append(recorded)
        for phase, part in by_phase.items():
            one = copy.copy(recorder)
            one.recorded = part
            self._steps[phase] = NativeStep(ops, one, result, _MAX_TOKENS, max_rows)
        nothing = copy.copy(recorder)
        nothing.recorded = []
        self._choice = NativeStep(ops, nothing, result, _MAX_TOKENS, max_rows)
        self._whole = NativeStep(ops, recorder, result, _MAX_TOKENS, max_rows)

    @property
    def weight_bytes(self) -> int:
        """What a step reads whatever its rows are, the head included."""
        amounts = self.amounts(Shape("", 1, 1))
        return int(amounts[LINEARS].num_bytes + amounts[HEAD].num_bytes)

    def run_kernels(self, inputs: StepInputs) -> None:
        """What a server's step computes: logits and, greedily, the next tokens."""
        self._whole.with_most_likely(inputs)

    def phase_runs(self, inputs: StepInputs) -> dict[str, Callable[[], object]]:
        """Each phase alone. What it reads is what was left in memory, mostly zeros; that changes no time here."""
        runs: dict[str, Callable[[], object]] = {phase: partial(step, inputs) for phase, step in self._steps.items()}
        return {**runs, SAMPLING: partial(self._choice.with_most_likely, inputs)}

    def amounts(self, shape: Shape) -> dict[str, Amount]:
        """What each phase of a step of this shape must read and compute; nothing for those that hardly need memory."""
        model = self._model
        weights = linear_weights(model)
        num_tokens = shape.num_rows * shape.new_tokens
        elements = sum(weight.out_features * weight.in_features for weight in weights)
        head = model.head.weight
        # Token i of n new ones sees context - n + i + 1 positions.
        seen = shape.num_rows * sum(range(shape.context - shape.new_tokens + 1, shape.context + 1))
        kv_bytes = self._ops.kv_block_bytes(BLOCK_SIZE, model.num_kv_heads_local, model.head_dim) / BLOCK_SIZE
        heads = model.layers[0].attention.num_heads
        return {
            LINEARS: Amount(sum(weight.nbytes for weight in weights), 2 * num_tokens * elements),
            HEAD: Amount(head.nbytes, 2 * shape.num_rows * head.out_features * head.in_features),
            ATTENTION: Amount(
                shape.num_rows * shape.context * kv_bytes * len(model.layers),
                4 * seen * heads * model.head_dim * len(model.layers),
            ),
        }

    def inputs(self, shape: Shape) -> StepInputs:
        """A made-up step; every row has blocks of its own."""
        blocks = -(-shape.context // BLOCK_SIZE)
        tables = torch.arange(shape.num_rows * blocks, dtype=torch.int32).view(shape.num_rows, blocks)
        positions = torch.arange(shape.context - shape.new_tokens, shape.context)
        slots = tables[:, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        num_tokens = shape.num_rows * shape.new_tokens
        step = StepMetadata(
            positions=positions.repeat(shape.num_rows),
            slot_mapping=slots.flatten().to(torch.int32),
            block_tables=tables,
            cu_seqlens_q=tuple(range(0, num_tokens + 1, shape.new_tokens)),
            kv_lens=(shape.context,) * shape.num_rows,
        )
        sampled = torch.arange(1, shape.num_rows + 1) * shape.new_tokens - 1
        return StepInputs(torch.arange(num_tokens) * 97 % self._model.head.weight.out_features, step, sampled)

    def _logits(self, inputs: StepInputs) -> Tensor:
        logits = self._model.sampled_logits(inputs, self._caches)
        assert logits is not None
        return logits

    def _phase(self, instruction: Instruction) -> str:
        op = Op(instruction.op)
        if op is Op.LINEAR:
            is_head = instruction.arguments.linear.out_features == self._model.head.weight.out_features
            return HEAD if is_head else LINEARS
        return ATTENTION if op is Op.ATTENTION else ELEMENTWISE


def medians(variants: Mapping[str, Callable[[], object]], seconds: float, min_rounds: int = 3) -> dict[str, float]:
    """The median time of each variant in seconds; they take turns for so long, the first not counted."""
    times_s: dict[str, list[float]] = defaultdict(list)
    for run in variants.values():
        run()
    end_s = time.perf_counter() + seconds
    rounds = 0
    while rounds < min_rounds or time.perf_counter() < end_s:
        for name, run in variants.items():
            began_s = time.perf_counter()
            run()
            times_s[name].append(time.perf_counter() - began_s)
        rounds += 1
    return {name: median(times) for name, times in times_s.items()}


def contexts(first: int, last: int, count: int) -> Sequence[int]:
    """`count` contexts from first to last, evenly."""
    return [first + (last - first) * index // max(count - 1, 1) for index in range(count)]
