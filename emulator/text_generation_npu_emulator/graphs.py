"""Captured graphs: kernels with their arguments, run again as a whole.

Capturing executes nothing: what existed before keeps its values, and outputs hold nothing until the first replay.
Tensors on the card are remembered by their place, and are read anew; what lay on the host (numbers, lists of lengths,
host tensors) is remembered as it was. A task group is a stretch of a graph whose host arguments can be replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from text_generation_npu_emulator.launch import Arguments, Kernel, Refused, freeze, rerun
from text_generation_npu_emulator.present import machine_now
from text_generation_npu_emulator.tensors import POISON, Place, is_on_npu

# Ops whose lists of lengths `NPUGraph.update` replaces when a graph was captured with auto_dispatch_capture.
_UPDATED_BY_GRAPH = ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2", "npu_fusion_attention_v3")


class Mark:
    """What one stream sets and another waits for, also from inside a graph."""

    def __init__(self) -> None:
        self.is_recorded = False

    def record(self) -> None:
        self.is_recorded = True
        machine_now().resume_replays()

    def wait(self) -> None:
        capture = machine_now().capture
        if capture is not None:
            capture.steps.append(_Wait(self))
        elif not self.is_recorded:
            raise Refused("a stream waits for an ExternalEvent that nobody has recorded: it would wait for ever")

    def reset(self) -> None:
        capture = machine_now().capture
        if capture is not None:
            capture.steps.append(_Reset(self))
        else:
            self.is_recorded = False


@dataclass(slots=True)
class _Wait:
    mark: Mark


@dataclass(slots=True)
class _Reset:
    mark: Mark


@dataclass(slots=True)
class Record:
    """One kernel of a graph."""

    kernel: Kernel
    arguments: Arguments
    outputs: Any


Step = Record | _Wait | _Reset


@dataclass(slots=True)
class TaskGroup:
    """Some kernels of a graph, in order. It is its own handle."""

    records: list[Record] = field(default_factory=list)


@dataclass(slots=True)
class Capture:
    """A graph in the making."""

    first_serial: int  # storages from here on were made while capturing
    updates_lists: bool  # auto_dispatch_capture
    steps: list[Step] = field(default_factory=list)
    group: TaskGroup | None = None
    updatable: list[tuple[Mark, TaskGroup]] = field(default_factory=list)

    def record_launch(self, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
        """Record a kernel; with auto_dispatch_capture, some behind an event and in a group of their own."""
        alone = self.updates_lists and self.group is None and kernel.name in _UPDATED_BY_GRAPH
        if not alone:
            self._record(kernel, args, kwargs, outputs)
            return
        mark = Mark()
        self.steps += [_Wait(mark), _Reset(mark)]
        self.group = TaskGroup()
        self._record(kernel, args, kwargs, outputs)
        self.updatable.append((mark, self.group))
        self.group = None

    def _record(self, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
        record = Record(kernel, *tree_map(self._keep, (freeze(args, kwargs), outputs)))
        if self.group is not None:
            self.group.records.append(record)
        self.steps.append(record)

    def _keep(self, value: Any) -> Any:
        if not is_on_npu(value):
            return value
        tensors = machine_now().tensors
        return value if tensors.block(value).serial < self.first_serial else tensors.hold(value)

    def finish(self) -> None:
        """Give the graph its tensors. Those made while capturing hold nothing yet: capturing has executed nothing."""
        if self.group is not None:
            raise Refused("a task group was begun and not ended")
        tensors = machine_now().tensors
        spoiled = set()
        whole: dict[int, Tensor] = {}

        def revive(value: Any) -> Any:
            tensor = tensors.revive(value, whole) if isinstance(value, Place) else value
            if is_on_npu(tensor):
                serial = tensors.block(tensor).serial
                if serial >= self.first_serial and serial not in spoiled:
                    spoiled.add(serial)
                    tensors.whole_bytes(tensor).fill_(POISON)
            return tensor

        for step in self.steps:
            if isinstance(step, Record):
                step.arguments, step.outputs = tree_map(revive, (step.arguments, step.outputs))


def begin_capture(updates_lists: bool = False) -> None:
    """From now on, kernels of this process are recorded."""
    machine = machine_now()
    machine.require_graphs()
    if machine.capture is not None:
        raise Refused("a graph is being captured already")
    machine.capture = Capture(machine.tensors.next_serial, updates_lists)


def end_capture() -> Capture:
    """Record no more. What was recorded is still to be finished."""
    machine = machine_now()
    if machine.capture is None:
        raise Refused("no graph is being captured")
    capture, machine.capture = machine.capture, None
    return capture


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

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._next = 0

    def advance(self) -> bool:
        """Run as far as possible; whether that was to the end."""
        while self._next < len(self._steps):
            step = self._steps[self._next]
            if isinstance(step, _Wait):
                if not step.mark.is_recorded:
                    return False
            elif isinstance(step, _Reset):
                step.mark.is_recorded = False
            else:
                args, kwargs = step.arguments
                rerun(machine_now(), step.kernel, args, kwargs, step.outputs)
            self._next += 1
        return True


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


def begin_update(group: TaskGroup) -> None:
    """torch.npu.graph_task_update_begin."""
    machine = machine_now()
    if machine.update is not None:
        raise Refused("a task group is being updated already")
    if machine.capture is not None:
        raise Refused("a task group cannot be updated while a graph is captured")
    machine.update = TaskUpdate(group)


def end_update() -> None:
    """torch.npu.graph_task_update_end."""
    machine = machine_now()
    update, machine.update = machine.update, None
    if update is None:
        raise Refused("no task group is being updated")
    update.finish()
