"""Streams and events. Everything has finished when its launch returns, so they only keep names, marks and times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from text_generation_npu_emulator.launch import Refused
from text_generation_npu_emulator.present import machine_now

if TYPE_CHECKING:
    from types import TracebackType


def index_of(device: torch.device | str | int | None) -> int:
    """The number of a card; the current one where none is named."""
    machine = machine_now()
    named = device if isinstance(device, int) or device is None else torch.device(device).index
    index = machine.current_device if named is None else named
    machine.require_device(index)
    return index


class Stream:
    """torch.npu.Stream."""

    def __init__(self, device: torch.device | str | int | None = None, priority: int = 0, **_: object) -> None:
        self.device_index = index_of(device)
        self.is_default = False

    @property
    def device(self) -> torch.device:
        return torch.device("npu", self.device_index)

    @property
    def npu_stream(self) -> int:
        """The address that stands for it."""
        return 0 if self.is_default else id(self)

    def synchronize(self) -> None:
        machine_now().wait("Stream.synchronize()")

    def query(self) -> bool:
        return True

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Everything launched on the other stream has finished."""

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"<torch_npu.npu.Stream device=npu:{self.device_index} npu_stream={self.npu_stream:#x}>"


class Event:
    """torch.npu.Event."""

    def __init__(self, enable_timing: bool = False, **_: object) -> None:
        self._timed = enable_timing
        self._recorded_at: float | None = None

    def record(self, stream: object = None) -> None:
        self._recorded_at = time.perf_counter()

    def wait(self, stream: object = None) -> None:
        """What the event marks has finished."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        machine_now().wait("Event.synchronize()")

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds between two recorded events."""
        if not (self._timed and end._timed):
            raise Refused("elapsed_time needs events made with enable_timing=True")
        if self._recorded_at is None or end._recorded_at is None:
            raise Refused("elapsed_time needs events that were recorded")
        return (end._recorded_at - self._recorded_at) * 1000


class StreamContext:
    """torch.npu.stream(stream)."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream
        self._before: Stream | None = None

    def __enter__(self) -> Any:
        if self._stream is not None:
            self._before = machine_now().current_stream()
            machine_now().set_stream(self._stream)
        return self._stream

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._before is not None:
            machine_now().set_stream(self._before)
