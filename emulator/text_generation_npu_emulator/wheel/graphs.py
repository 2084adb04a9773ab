"""What the runtime does when torch_npu captures graphs: kernels are recorded, and run again.

torch_npu's own NPUGraph, task groups and events stand on top, with its own pools of memory.
"""

from __future__ import annotations

from itertools import count

from text_generation_npu_emulator.graphs import (
    Mark,
    Replay,
    Step,
    TaskGroup,
    begin_capture,
    begin_group,
    begin_update,
    end_capture,
    end_group,
    end_update,
)
from text_generation_npu_emulator.launch import Refused
from text_generation_npu_emulator.present import machine_now


class GraphEvents:
    """Graphs, task groups and marks, by the numbers under which the runtime knows them."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._captured = 0
        self._graphs: dict[int, list[Step]] = {}
        self._groups: dict[int, TaskGroup] = {}
        self._marks: dict[int, Mark] = {}

    def begin_capture(self) -> int:
        begin_capture()
        self._captured = next(self._numbers)
        return self._captured

    def end_capture(self) -> None:
        capture = end_capture()
        self._graphs[self._captured] = []  # which can be destroyed, whatever is wrong with it
        capture.finish()
        self._graphs[self._captured] = capture.steps
        machine_now().captured_graphs += 1

    def replay(self, graph: int) -> None:
        machine = machine_now()
        machine.require_nothing_waits("a graph was replayed")
        if machine.capture is not None:
            raise Refused("a graph cannot be replayed while another is being captured")
        machine.start_replay(Replay(self._graphs[graph]))

    def destroy(self, graph: int) -> None:
        del self._graphs[graph]

    def begin_group(self) -> None:
        begin_group()

    def end_group(self) -> int:
        number = next(self._numbers)
        self._groups[number] = end_group()
        return number

    def begin_update(self, group: int) -> None:
        begin_update(self._groups[group])

    def end_update(self) -> None:
        end_update()

    def mark(self, event: int, what: int) -> None:
        mark = self._marks.setdefault(event, Mark())
        (mark.record, mark.wait, mark.reset)[what]()

    def wait(self) -> None:
        machine_now().wait("waiting for the device")
