"""The calls of a captured graph whose host arguments must be refreshed before each replay.

Attention takes the lengths of the cached rows as a host list, which a graph keeps as it was at capture: replayed as it
is, a sequence would never see its newer tokens. So each such call is captured as a task group of its own, behind an
event, and issued again with the new lengths, on another stream, before the graph is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

# Issues a call with these lengths.
Issue = Callable[[list[int]], object]


@dataclass(frozen=True, slots=True)
class Task:
    """One call of a captured graph."""

    handle: Any
    event: Any
    issue: Issue


class GraphTasks:
    """The length-dependent calls of one device's graphs; `recording` is set while one is captured.

    Args:
        npu: torch_npu.npu.
    """

    def __init__(self, npu: Any) -> None:
        self._npu = npu
        self.recording: list[Task] | None = None
        self._workspaces: dict[Hashable, Tensor] = {}  # of the graph that is recorded
        self._update_stream: Any = None

    @property
    def num_recorded(self) -> int:
        return 0 if self.recording is None else len(self.recording)

    def begin(self) -> list[Task]:
        """Collect the calls of a capture in the list that is returned, until `end`."""
        self.recording = []
        return self.recording

    def end(self) -> None:
        self.recording = None
        self._workspaces = {}

    def workspace(self, shape: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """Scratch memory for a call of the graph that is recorded. Calls of equal shapes, such as all layers', get the
        same: they run one after the other."""
        if shape not in self._workspaces:
            self._workspaces[shape] = make()
        return self._workspaces[shape]

    def capture(self, issue: Issue, kv_lens: Sequence[int]) -> None:
        """Issue a call as part of the graph that is being captured, in a way that `update` can replace."""
        assert self.recording is not None
        stream = self._npu.current_stream()
        event = self._npu.ExternalEvent()
        event.wait(stream)
        event.reset(stream)
        self._npu.graph_task_group_begin(stream)
        issue(list(kv_lens))
        self.recording.append(Task(self._npu.graph_task_group_end(stream), event, issue))

    def update(self, tasks: Sequence[Task], kv_lens: Sequence[int]) -> None:
        """Give all calls of a graph the lengths of its next replay. No earlier replay may still be running."""
        if self._update_stream is None:
            self._update_stream = self._npu.Stream()
        stream, lengths = self._update_stream, list(kv_lens)
        with self._npu.stream(stream):
            for task in tasks:
                self._npu.graph_task_update_begin(stream, task.handle)
                task.issue(lengths)
                self._npu.graph_task_update_end(stream)
                task.event.record(stream)
