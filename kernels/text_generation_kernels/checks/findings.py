"""What a check of ops found, as reports and later starts read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Rejection:
    """A way to compute an op that is not used, and why."""

    candidate: str
    reason: str  # with the sample's shapes, in one line


@dataclass(frozen=True, slots=True)
class OpFinding:
    """One op."""

    op: str
    candidates: tuple[str, ...]  # that computed its samples; empty: none is right
    num_samples: int
    worst_error: float  # of those samples, as a share of a row's size
    rejections: tuple[Rejection, ...] = ()

    @property
    def is_right(self) -> bool:
        return bool(self.candidates)


def from_json(values: dict[str, Any]) -> OpFinding:
    """From what `dataclasses.asdict` made of one. Raises: KeyError, TypeError, for anything else."""
    return OpFinding(
        op=str(values["op"]),
        candidates=tuple(map(str, values["candidates"])),
        num_samples=int(values["num_samples"]),
        worst_error=float(values["worst_error"]),
        rejections=tuple(Rejection(str(it["candidate"]), str(it["reason"])) for it in values["rejections"]),
    )
