"""Captured graphs as torch.npu shows them: graphs, their memory pools, and events that order them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from text_generation_npu_emulator.graphs import Mark, Replay, Step, TaskGroup, begin_capture, end_capture
from text_generation_npu_emulator.launch import Refused, freeze
from text_generation_npu_emulator.memory import CardMemory
from text_generation_npu_emulator.present import machine_now


class ExternalEvent:
    """torch.npu.ExternalEvent."""

    def __init__(self) -> None:
        self._mark = Mark()

    def record(self, stream: object = None) -> None:
        self._mark.record()

    def wait(self, stream: object = None) -> None:
        self._mark.wait()

    def reset(self, stream: object = None) -> None:
        self._mark.reset()


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


class NPUGraph:
    """torch.npu.NPUGraph."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._steps: list[Step] | None = None
        self._updatable: list[tuple[Mark, TaskGroup]] = []
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
        if machine.current_stream().is_default:
            raise Refused("graphs must be captured on a stream that is not the default one")
        if self._steps is not None:
            raise Refused("this graph was captured already; reset it, or make another")
        begin_capture(auto_dispatch_capture)
        self._pool = pool or self._pool
        card = machine.allocator.card(machine.current_device)
        self._before = (card.allocated, card.peak_allocated)
        card.peak_allocated = card.allocated
        self._pool.open(card)

    def capture_end(self) -> None:
        machine = machine_now()
        capture = end_capture()
        card = machine.allocator.card(machine.current_device)
        allocated, peak = self._before
        self._pool.close(max(0, card.peak_allocated - max(card.allocated, allocated)))
        card.peak_allocated = max(card.peak_allocated, peak)
        self._steps = []
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
        for (mark, group), changed in zip(self._updatable, inputs, strict=True):
            args, kwargs = group.records[0].arguments
            for name, value in changed.items():
                if not isinstance(kwargs.get(name), (list, tuple)):
                    raise Refused(f"{group.records[0].kernel.name} was not captured with a list {name!r}")
                kwargs = {**kwargs, name: list(value)}
            group.records[0].arguments = freeze(args, kwargs)
            mark.record()

    def reset(self) -> None:
        if self._steps is not None:
            self._pool.leave()
        self._steps = None
        self._updatable = []

    def __del__(self) -> None:
        self.reset()

    def pool(self) -> Pool:
        return self._pool
