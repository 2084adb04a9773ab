"""What the measuring process says, one JSON object a line: plain frozen records of numbers and words."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Facts:
    """Of the shard that is measured."""

    kind: ClassVar[str] = "facts"
    model_id: str
    server_version: str
    device: str  # e.g. "Ascend910B4"
    dtype: str
    num_shards: int


@dataclass(frozen=True, slots=True)
class Stage:
    """What goes on now, in words, where it is not a run."""

    kind: ClassVar[str] = "stage"
    text: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A run has begun, or has got so far."""

    kind: ClassVar[str] = "progress"
    batch_size: int
    run: int  # the first is 1; of a warm-up too
    is_warmup: bool
    fraction: float  # of the run's steps; 0 at its beginning


@dataclass(frozen=True, slots=True)
class Run:
    """One prefill and the decode steps after it. Times are in seconds, from planning a step to its answer."""

    kind: ClassVar[str] = "run"
    batch_size: int
    prefill_s: float
    # Of each decode step: from the answer before it to its own, which is what a stream's reader waits for a token.
    step_s: tuple[float, ...]

    @property
    def decode_s(self) -> float:
        return sum(self.step_s)


@dataclass(frozen=True, slots=True)
class Failed:
    kind: ClassVar[str] = "failed"
    message: str  # one line


@dataclass(frozen=True, slots=True)
class Done:
    """All runs are made."""

    kind: ClassVar[str] = "done"


Event = Facts | Stage | Progress | Run | Failed | Done
_KINDS: dict[str, Callable[..., Event]] = {
    record.kind: record for record in (Facts, Stage, Progress, Run, Failed, Done)
}


def to_line(event: Event) -> str:
    return json.dumps({"kind": event.kind, **dataclasses.asdict(event)})


def from_line(line: str | bytes) -> Event:
    """Raises: ValueError if the line is not an event."""
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or fields.get("kind") not in _KINDS:
        raise ValueError(f"not an event: {line!r}")
    record = _KINDS[fields.pop("kind")]
    return record(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})
