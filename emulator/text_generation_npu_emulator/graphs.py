"""Captured graphs: kernels with their arguments, run again as a whole.

Capturing executes nothing: what existed before keeps its values, and outputs hold nothing until the first replay.
Tensors on the card are remembered by their place, and are read anew; what lay on the host (numbers, lists of lengths,
host tensors) is remembered as it was. A task group is a stretch of a graph whose host arguments can be replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from text_generation_npu_emulator.launch import Arguments, Kernel, Refused, freeze, rerun
from text_generation_npu_emulator.memory import CardMemory
from text_generation_npu_emulator.present import machine_now
from text_generation_npu_emulator.storage import flat_host_tensor
from text_generation_npu_emulator.tensors import POISON, is_on_npu

# Ops whose lists of lengths `NPUGraph.update` replaces when a graph was captured with auto_dispatch_capture.
_UPDATED_BY_GRAPH = ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2", "npu_fusion_attention_v3")


class ExternalEvent:
    """A mark that one stream sets and another waits for, also from inside a graph."""

    def __init__(self) -> None:
        self.is_recorded = False

    def record(self, stream: object = None) -> None:
        self.is_recorded = True
        machine_now().resume_replays()

    def wait(self, stream: object = None) -> None:
        capture = machine_now().capture
        if capture is not None:
            capture.steps.append(_Wait(self))
        elif not self.is_recorded:
            raise Refused("a stream waits for an ExternalEvent that nobody has recorded: it would wait for ever")

    def reset(self, stream: object = None) -> None:
        capture = machine_now().capture
        if capture is not None:
            capture.steps.append(_Reset(self))
        else:
            self.is_recorded = False


@dataclass(slots=True)
class _Wait:
    event: ExternalEvent


@dataclass(slots=True)
class _Reset:
    event: ExternalEvent


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor that was made while capturing: a graph keeps its bytes, and its owner may let it go."""

    storage: torch.UntypedStorage  # on the host
    serial: int
    device: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Pool:
    """Memory that graphs use between their replays: as much as the largest of them needs beside what it gives out."""

    def __init__(self) -> None:
        self._card: CardMemory | None = None
        self._bytes = 0
        self._users = 0

    def open(self, card: CardMemory) -> None:
        """A capture may use it."""
        self._card = card
        card.pools -= self._bytes

    def close(self, needed: int) -> None:
        """A capture has ended, and needs so many bytes again at each replay."""
        assert self._card is not None
        self._bytes = max(self._bytes, needed)
        self._card.pools += self._bytes
        self._users += 1

    def leave(self) -> None:
        """A graph is gone."""
        self._users -= 1
        if self._users == 0 and self._card is not None:
            self._card.pools -= self._bytes
            self._bytes = 0


@dataclass(slots=True)
class Record:
    """One kernel of a graph."""

    kernel: Kernel
    arguments: Arguments
    outputs: Any


@dataclass(slots=True)
class TaskGroup:
    """Some kernels of a graph, in order. It is its own handle."""

    records: list[Record] = field(default_factory=list)


@dataclass(slots=True)
class Capture:
    """A graph in the making."""

    first_serial: int  # storages from here on were made while capturing
    updates_lists: bool  # auto_dispatch_capture
    steps: list[Record | _Wait | _Reset] = field(default_factory=list)
    group: TaskGroup | None = None
    updatable: list[tuple[ExternalEvent, TaskGroup]] = field(default_factory=list)

    def record_launch(self, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
        """Record a kernel; with auto_dispatch_capture, some behind an event and in a group of their own."""
        alone = self.updates_lists and self.group is None and kernel.name in _UPDATED_BY_GRAPH
        if not alone:
            self._record(kernel, args, kwargs, outputs)
            return
        event = ExternalEvent()
        self.steps += [_Wait(event), _Reset(event)]
        self.group = TaskGroup()
        self._record(kernel, args, kwargs, outputs)
        self.updatable.append((event, self.group))
        self.group = None

    def _record(self, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
        record = Record(kernel, *tree_map(self._keep, (freeze(args, kwargs), outputs)))
        if self.group is not None:
            self.group.records.append(record)
        self.steps.append(record)

    def _keep(self, value: Any) -> Any:
        if not is_on_npu(value):
            return value
        block = machine_now().tensors.block(value)
        if block.serial < self.first_serial:
            return value
        return _Place(
            block.host_storage(),
            block.serial,
            block.device,
            value.dtype,
            tuple(value.shape),
            value.stride(),
            value.storage_offset(),
        )

    def finish(self) -> None:
        """Give places back their tensors, which hold nothing yet: capturing has executed nothing."""
        machine = machine_now()
        whole: dict[int, Tensor] = {}

        def revive(value: Any) -> Any:
            if not isinstance(value, _Place):
                return value
            if value.serial not in whole:
                whole[value.serial] = machine.allocator.revive(value.storage, value.serial, value.device)
                flat_host_tensor(value.storage).fill_(POISON)
                machine.tensors.block(whole[value.serial]).generation += 1
            return machine.tensors.view(whole[value.serial], value.shape, value.stride, value.dtype, value.offset)

        for step in self.steps:
            if isinstance(step, Record):
                step.arguments, step.outputs = tree_map(revive, (step.arguments, step.outputs))


class TaskUpdate:
    """While it is on, launches replace the arguments of a task group's kernels, in order, and run nothing."""

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._next = 0

    def replace(self, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._next == len(self._group.records):
            raise Refused(f"{kernel.name}: the task group has {self._next} kernels, and this would be one more")
        record = self._group.records[self._next]
        if kernel.name != record.kernel.name:
            raise Refused(f"the task group has {record.kernel.name} here; it cannot be replaced by {kernel.name}")
        old, new = _tensors(record.arguments), _tensors((args, kwargs))
        if old != new:
            raise Refused(f"{kernel.name}: an update replaces host arguments; tensors must be those of the capture")
        self._next += 1
        record.arguments = freeze(args, kwargs)
        return record.outputs

    def finish(self) -> None:
        if self._next != len(self._group.records):
            raise Refused(f"the task group has {len(self._group.records)} kernels; {self._next} were updated")


def _tensors(arguments: Arguments) -> list[tuple[object, ...]]:
    leaves, _ = tree_flatten(arguments)
    return [(leaf.data_ptr(), tuple(leaf.shape), leaf.stride()) for leaf in leaves if is_on_npu(leaf)]


class Replay:
    """A run of a graph, which stands still where it waits for an event."""

    def __init__(self, steps: Sequence[Record | _Wait | _Reset]) -> None:
        self._steps = steps
        self._next = 0

    def advance(self) -> bool:
        """Run as far as possible; whether that was to the end."""
        while self._next < len(self._steps):
            step = self._steps[self._next]
            if isinstance(step, _Wait):
                if not step.event.is_recorded:
                    return False
            elif isinstance(step, _Reset):
                step.event.is_recorded = False
            else:
                args, kwargs = step.arguments
                rerun(machine_now(), step.kernel, args, kwargs, step.outputs)
            self._next += 1
        return True


class NPUGraph:
    """torch.npu.NPUGraph."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._steps: list[Record | _Wait | _Reset] | None = None
        self._updatable: list[tuple[ExternalEvent, TaskGroup]] = []
        self._before = (0, 0)  # allocated, and its peak, when the capture began
        self._pool = Pool()

    def capture_begin(
        self,
        pool: Pool | None = None,
        capture_error_mode: str = "global",
        auto_dispatch_capture: bool = False,
        **_: object,
    ) -> None:
        machine = machine_now()
        machine.require_graphs()
        if machine.capture is not None:
            raise Refused("a graph is being captured already")
        if machine.current_stream().is_default:
            raise Refused("graphs must be captured on a stream that is not the default one")
        if self._steps is not None:
            raise Refused("this graph was captured already; reset it, or make another")
        self._pool = pool or self._pool
        card = machine.allocator.card(machine.current_device)
        self._before = (card.allocated, card.peak_allocated)
        card.peak_allocated = card.allocated
        self._pool.open(card)
        machine.capture = Capture(machine.allocator.next_serial, auto_dispatch_capture)

    def capture_end(self) -> None:
        machine = machine_now()
        capture = machine.capture
        if capture is None:
            raise Refused("no graph is being captured")
        machine.capture = None
        card = machine.allocator.card(machine.current_device)
        allocated, peak = self._before
        self._pool.close(max(0, card.peak_allocated - max(card.allocated, allocated)))
        card.peak_allocated = max(card.peak_allocated, peak)
        self._steps = []
        if capture.group is not None:
            raise Refused("a task group was begun and not ended")
        capture.finish()
        self._steps = capture.steps
        self._updatable = capture.updatable
        machine.captured_graphs += 1

    def replay(self) -> None:
        if self._steps is None:
            raise Refused("this graph was not captured")
        machine_now().require_nothing_waits("a graph was replayed")
        if machine_now().capture is not None:
            raise Refused("a graph cannot be replayed while another is being captured")
        machine_now().start_replay(Replay(self._steps))

    def update(self, cpu_update_input: Sequence[Mapping[str, Any]]) -> None:
        """Replace lists of lengths: one mapping for all attention kernels of the graph, or one for each."""
        if not self._updatable:
            raise Refused("nothing of this graph can be updated; capture it with auto_dispatch_capture=True")
        inputs = list(cpu_update_input) * (len(self._updatable) if len(cpu_update_input) == 1 else 1)
        if len(inputs) != len(self._updatable):
            raise Refused(f"the graph has {len(self._updatable)} kernels to update; {len(inputs)} inputs were given")
        for (event, group), changed in zip(self._updatable, inputs, strict=True):
            args, kwargs = group.records[0].arguments
            for name, value in changed.items():
                if not isinstance(kwargs.get(name), (list, tuple)):
                    raise Refused(f"{group.records[0].kernel.name} was not captured with a list {name!r}")
                kwargs = {**kwargs, name: list(value)}
            group.records[0].arguments = freeze(args, kwargs)
            event.record()

    def reset(self) -> None:
        if self._steps is not None:
            self._pool.leave()
        self._steps = None
        self._updatable = []

    def __del__(self) -> None:
        self.reset()

    def pool(self) -> Pool:
        return self._pool


def begin_group() -> None:
    """torch.npu.graph_task_group_begin."""
    machine = machine_now()
    if machine.capture is None:
        raise Refused("a task group can only be begun while a graph is captured")
    if machine.capture.group is not None:
        raise Refused("a task group was begun already")
    machine.capture.group = TaskGroup()


def end_group() -> TaskGroup:
    """torch.npu.graph_task_group_end."""
    machine = machine_now()
    if machine.capture is None or machine.capture.group is None:
        raise Refused("no task group was begun")
    group, machine.capture.group = machine.capture.group, None
    return group
