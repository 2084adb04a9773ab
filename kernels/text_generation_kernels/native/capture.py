"""Recording a model step as a list of instructions, and running it again in one call.

The step's function runs once on a few made-up tokens, through the same ops. What each op read and wrote is known by the
memory behind its tensors; from that follows which results are still needed when, and so which may share memory. The
instructions then point into memory for the largest step, and only counts differ from step to step. Whatever happens
between ops must therefore be views, or go through `Ops.outside`, which cuts the list in two: anything else that
computes cannot be replayed. It is refused where it shows, and, since work in place does not show, the recording is run
against the function on other rows before it is trusted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from text_generation_kernels.interface import (
    CapturedStep,
    CaptureRefused,
    MostLikely,
    MostLikelyOnHost,
    StepFunction,
    StepInputs,
    StepMetadata,
)
from text_generation_kernels.native import library as c
from text_generation_kernels.native.library import Ids, Op, Rows
from text_generation_kernels.native.ops import NativeCpuOps, StepArguments, most_likely_arguments

# Results begin at whole cache lines.
_ALIGNMENT_FLOATS = 16
# Ops that read a number of x for the last time before they write the one at its place, and no other row's. A result in
# memory that is in the cache already takes a prompt a fifth less time than one elsewhere.
_IN_PLACE = (Op.ADD_RMS_NORM, Op.SILU_AND_MUL)


@dataclass(slots=True)
class _Value:
    """A result of the recorded step: memory with as many floats for each row."""

    rows: Rows
    width: int
    first_use: int  # index of the instruction that writes it
    last_use: int
    keeper: Tensor  # keeps the memory, so that no later result has the same address
    over: _Value | None = None  # what it may be written over, row by row, if nothing reads that later
    place: int = 0  # its first float
    stride: int = 0  # floats from row to row


@dataclass(frozen=True, slots=True)
class _Pointer:
    """A field of an instruction that points `column` floats into a value's rows."""

    field: str
    value: _Value
    column: int


@dataclass(frozen=True, slots=True)
class _Recorded:
    instruction: c.Instruction
    pointers: tuple[_Pointer, ...]


@dataclass(frozen=True, slots=True)
class _Call:
    """Something between instructions. `source` None: the step's token ids."""

    function: Callable[[Tensor], Tensor]
    source: _Value | None
    target: _Value  # the source itself, where the function gives back what it was given


class StepRecorder:
    """Takes down the instructions of one run over `inputs`."""

    def __init__(self, inputs: StepInputs) -> None:
        self._inputs = inputs
        self._values: dict[int, _Value] = {}  # by address of their memory
        self._ids = {
            inputs.token_ids.data_ptr(): Ids.TOKEN_IDS,
            inputs.step.positions.data_ptr(): Ids.POSITIONS,
            inputs.sampled.data_ptr(): Ids.SAMPLED_TOKENS,
        }
        self.recorded: list[_Recorded | _Call] = []
        self.constants: list[object] = []

    def add(
        self,
        instruction: c.Instruction,
        reads: Mapping[str, Tensor],
        writes: Mapping[str, Tensor],
        *,
        ids: Tensor | None,
        constants: tuple[object, ...],
    ) -> None:
        op = Op(instruction.op)
        copy = c.Instruction.from_buffer_copy(instruction)
        rows = self._rows(op, copy, reads, ids)
        copy.rows = rows
        pointers: list[_Pointer] = []
        for field, tensor in reads.items():
            value = self._values.get(_address(tensor))
            if value is not None:
                value.last_use = len(self.recorded)
                pointers.append(_Pointer(field, value, _column(tensor)))
            elif field != "table":  # an embedding's table may be a weight
                raise CaptureRefused(f"{op.name.lower()}: {field} was computed by something that is not a native op")
        for field, tensor in writes.items():
            width = tensor.untyped_storage().nbytes() // 4 // max(len(tensor), 1)
            value = _Value(rows, width, len(self.recorded), len(self.recorded), tensor)
            if op in _IN_PLACE:
                x = self._values[_address(reads["x"])]
                value.over = x if reads["x"].stride(0) == x.width and not _column(reads["x"]) else None
            self._values[_address(tensor)] = value
            pointers.append(_Pointer(field, value, 0))
        self.recorded.append(_Recorded(copy, tuple(pointers)))
        self.constants += constants

    def add_call(self, function: Callable[[Tensor], Tensor], x: Tensor, result: Tensor) -> None:
        source = self._values.get(_address(x))
        if source is None and x.data_ptr() != self._inputs.token_ids.data_ptr():
            raise CaptureRefused("what is called outside takes something that is not a native op's result")
        if source is not None and x.shape != source.keeper.shape:
            raise CaptureRefused("what is called outside takes a part of a native op's result")
        target = source
        if source is not None:
            source.last_use = len(self.recorded)
            source.over = None  # its rows must lie side by side
        if target is None or _address(result) != _address(x):
            if result.dtype is not torch.float32 or len(result) != len(x):
                raise CaptureRefused("what is called outside gives no float32 tensor with as many rows as it takes")
            rows = Rows.TOKENS if source is None else source.rows
            target = _Value(rows, result.numel() // len(result), len(self.recorded), len(self.recorded), result)
            self._values[_address(result)] = target
        self.recorded.append(_Call(function, source, target))

    def result(self, tensor: Tensor) -> _Value:
        """The value that the step's function returned, kept to the end."""
        value = self._values.get(_address(tensor))
        if value is None:
            raise CaptureRefused("the step's result was computed by something that is not a native op")
        value.last_use = len(self.recorded)
        value.over = None  # its rows must lie side by side
        return value

    def values(self) -> list[_Value]:
        return list(self._values.values())

    def _rows(self, op: Op, instruction: c.Instruction, reads: Mapping[str, Tensor], ids: Tensor | None) -> Rows:
        if op is Op.EMBEDDING:
            assert ids is not None
            source = self._ids.get(ids.data_ptr())
            if source is None:
                raise CaptureRefused("embedding: the ids are none of the step's own")
            instruction.arguments.embedding.ids = source
            return Rows.SAMPLED if source is Ids.SAMPLED_TOKENS else Rows.TOKENS
        step = self._inputs.step
        own = {Op.STORE_KV: step.slot_mapping, Op.ATTENTION: step.block_tables}.get(op)
        if own is not None and (ids is None or ids.data_ptr() != own.data_ptr()):
            raise CaptureRefused(f"{op.name.lower()}: the slots or blocks are not the step's own")
        kinds = {value.rows for value in (self._values.get(_address(x)) for x in reads.values()) if value is not None}
        if len(kinds) > 1:
            raise CaptureRefused(f"{op.name.lower()}: reads all tokens and the sampled ones")
        return kinds.pop() if kinds else Rows.TOKENS


@dataclass(frozen=True, slots=True)
class _Memory:
    """Where a value lies, for the largest step."""

    tensor: Tensor
    rows: Rows

    def rows_of(self, counts: Mapping[Rows, int]) -> Tensor:
        return self.tensor[: counts[self.rows]]


@dataclass(frozen=True, slots=True)
class _Outside:
    """A call between instructions, and where its values lie. `source` None: the step's token ids."""

    function: Callable[[Tensor], Tensor]
    source: _Memory | None
    target: _Memory

    def run(self, inputs: StepInputs, counts: Mapping[Rows, int]) -> None:
        target = self.target.rows_of(counts)
        result = self.function(inputs.token_ids if self.source is None else self.source.rows_of(counts))
        if result.data_ptr() != target.data_ptr():
            target.copy_(result)


@dataclass(frozen=True, slots=True)
class _Segment:
    """Instructions that run in one call, and what is called after them."""

    first: int
    count: int
    then: _Outside | None


@dataclass(frozen=True, slots=True)
class _Result:
    """Where a step of so many rows leaves its logits, and the most likely tokens if they were asked for."""

    logits: Tensor
    best: MostLikely
    ids: ctypes.Array[ctypes.c_int64]  # memory of `best`, as is the next
    log_sums: ctypes.Array[ctypes.c_float]


class NativeStep(CapturedStep):
    """A recorded step over memory of its own."""

    def __init__(
        self, ops: NativeCpuOps, recorder: StepRecorder, result: _Value, max_tokens: int, max_sampled: int
    ) -> None:
        self.max_tokens = max_tokens
        self.max_sampled = max_sampled
        self._team = ops.team
        limits = {Rows.TOKENS: max_tokens, Rows.SAMPLED: max_sampled}
        size = place_values(recorder.values(), limits)
        self._memory = torch.empty(size + _ALIGNMENT_FLOATS)
        start = self._memory.data_ptr() + -self._memory.data_ptr() % (4 * _ALIGNMENT_FLOATS)
        self._constants = recorder.constants  # weights and caches that the instructions point into
        self._step = StepArguments()

        def memory_of(value: _Value) -> _Memory:
            first = (start - self._memory.data_ptr()) // 4 + value.place
            tensor = self._memory[first : first + limits[value.rows] * value.width]
            return _Memory(tensor.view(limits[value.rows], *value.keeper.shape[1:]), value.rows)

        self._instructions = (c.Instruction * (len(recorder.recorded) + 1))()
        self._segments: list[_Segment] = []
        first = count = 0
        for recorded in recorder.recorded:
            if isinstance(recorded, _Recorded):
                self._place(first + count, recorded, start, limits)
                count += 1
            else:
                source = None if recorded.source is None else memory_of(recorded.source)
                self._segments.append(
                    _Segment(first, count, _Outside(recorded.function, source, memory_of(recorded.target)))
                )
                first, count = first + count, 0
        self._segments.append(_Segment(first, count, None))
        self._result = memory_of(result)
        # Behind the last segment stands one instruction more, which is run where it is asked for.
        self._vocab_size = self._result.tensor.shape[-1]
        self._best = _choose_likeliest(self._instructions[first + count], self._result)
        self._results: dict[int, _Result] = {}  # by number of rows

    def _place(self, index: int, recorded: _Recorded, start: int, limits: Mapping[Rows, int]) -> None:
        self._instructions[index] = recorded.instruction
        arguments = getattr(self._instructions[index].arguments, c.MEMBERS[Op(recorded.instruction.op)])
        for pointer in recorded.pointers:
            setattr(arguments, pointer.field, start + 4 * (pointer.value.place + pointer.column))
            if pointer.value.stride != pointer.value.width:
                setattr(arguments, f"{pointer.field}_stride", pointer.value.stride)
            if pointer.field == "table":
                arguments.table_rows = limits[pointer.value.rows]

    def __call__(self, inputs: StepInputs) -> Tensor:
        return self._run(inputs, 0).logits

    def with_most_likely(self, inputs: StepInputs) -> tuple[Tensor, MostLikelyOnHost]:
        result = self._run(inputs, 1)
        return result.logits, MostLikelyOnHost(result.best, self._vocab_size, result.ids[:], result.log_sums[:])

    def _run(self, inputs: StepInputs, num_more: int) -> _Result:
        """Run all segments, and `num_more` instructions behind the last."""
        num_tokens = self._step.set_rows(inputs.step)
        num_sampled = self._step.set_tokens(inputs.token_ids, inputs.sampled)
        if num_tokens > self.max_tokens or num_sampled > self.max_sampled:
            raise ValueError(
                f"a step of {num_tokens} tokens, {num_sampled} of them sampled, was given to one captured for "
                f"{self.max_tokens} and {self.max_sampled}"
            )
        for segment in self._segments:
            count = segment.count if segment.then is not None else segment.count + num_more
            if count:
                self._team.run(self._instructions, count, self._step.struct, first=segment.first)
            if segment.then is not None:
                segment.then.run(inputs, {Rows.TOKENS: num_tokens, Rows.SAMPLED: num_sampled})
        num_rows = num_sampled if self._result.rows is Rows.SAMPLED else num_tokens
        result = self._results.get(num_rows)
        if result is None:
            result = self._results[num_rows] = self._result_of(num_rows)
        return result

    def _result_of(self, num_rows: int) -> _Result:
        best = MostLikely(*(numbers[:num_rows] for numbers in self._best))
        return _Result(
            logits=self._result.tensor[:num_rows],
            best=best,
            ids=(ctypes.c_int64 * num_rows).from_address(best.ids.data_ptr()),
            log_sums=(ctypes.c_float * num_rows).from_address(best.log_sums.data_ptr()),
        )


def _choose_likeliest(instruction: c.Instruction, logits: _Memory) -> MostLikely:
    """Make an instruction one that finds the most likely tokens of a step's logits. Returns: where it puts them."""
    most = len(logits.tensor)
    best = MostLikely(torch.empty(most, dtype=torch.int64), *torch.empty(2, most).unbind())
    instruction.op, instruction.rows = Op.MOST_LIKELY, logits.rows
    instruction.arguments.most_likely = most_likely_arguments(logits.tensor, best)
    return best


def place_values(values: list[_Value], limits: Mapping[Rows, int]) -> int:
    """Give every value a place, such that no two that are needed at the same time overlap. Returns floats in all.

    First fit, in the order in which they are made. An op never writes over what it reads, but for one that may and is
    the last to read it: its result takes that place, rows as far apart.
    """
    placed: list[_Value] = []
    end = 0

    def size(value: _Value) -> int:
        return -(-value.stride * limits[value.rows] // _ALIGNMENT_FLOATS) * _ALIGNMENT_FLOATS

    for value in sorted(values, key=lambda value: value.first_use):
        placed = [other for other in placed if other.last_use >= value.first_use]
        over = value.over
        if over is not None and over.last_use == value.first_use:
            value.place, value.stride = over.place, over.stride
            placed.append(value)
            continue
        value.stride = value.width
        place = 0
        for other in sorted(placed, key=lambda other: other.place):
            if place + size(value) <= other.place:
                break
            place = max(place, other.place + size(other))
        value.place = place
        placed.append(value)
        end = max(end, place + size(value))
    return end


def capture(ops: NativeCpuOps, function: StepFunction, max_tokens: int, max_sampled: int) -> NativeStep:
    """Record `function` over a few made-up tokens that write nothing into the caches.

    Raises: CaptureRefused, naming the op that cannot be replayed.
    """
    inputs = example((3,), sampled=(2,))
    recorder = StepRecorder(inputs)
    ops.recorder = recorder
    try:
        result = recorder.result(function(inputs))
    finally:
        ops.recorder = None
    step = NativeStep(ops, recorder, result, max(max_tokens, 6), max(max_sampled, 3))
    # The ranks of a group must make the same calls to each other: none may stop at its first difference.
    are_equal = [torch.equal(step(other), function(other)) for other in (inputs, example((2, 1, 3), sampled=(1, 2, 4)))]
    if not all(are_equal):
        raise CaptureRefused("the recorded step gives other numbers: something between the ops computes in place")
    return step


def example(lengths: tuple[int, ...], sampled: tuple[int, ...]) -> StepInputs:
    """Prompts of these lengths, all in block 0, which they read and do not write."""
    total = sum(lengths)
    step = StepMetadata(
        positions=torch.tensor([position for length in lengths for position in range(length)]),
        slot_mapping=torch.full((total,), -1, dtype=torch.int32),
        block_tables=torch.zeros(len(lengths), 1, dtype=torch.int32),
        cu_seqlens_q=(0, *(sum(lengths[: index + 1]) for index in range(len(lengths)))),
        kv_lens=lengths,
    )
    return StepInputs(torch.arange(total) % 2, step, torch.tensor(sampled))


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _column(tensor: Tensor) -> int:
    return (tensor.data_ptr() - _address(tensor)) // 4
