"""Ways to compute one op, in order of preference, and which of them is used for which shapes.

Nothing is trusted because it exists: a candidate can be taken out at any time, with the reason, and the next one takes
its place. The last of each list is composed of plain torch ops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from text_generation_kernels.npu.schemas import OpUnavailable

logger = logging.getLogger(__name__)

RunT = TypeVar("RunT")
ShapeT = TypeVar("ShapeT", bound=Hashable)


class NoCandidate(RuntimeError):
    """Nothing is left that could compute an op. The message is one line with every candidate's reason."""


@dataclass(frozen=True, eq=False)
class Candidate(Generic[RunT, ShapeT]):
    """One way to compute an op."""

    name: str  # what reports call it: the torch_npu op, or "composed"
    run: RunT
    refusal: Callable[[ShapeT], str | None]  # why it cannot take such shapes; None: it can


@dataclass(frozen=True, slots=True)
class CandidateStatus:
    """A candidate as reports show it, in order of preference."""

    name: str
    refused: str | None  # why it is out for all shapes; None: it may be chosen


class Choice(Generic[RunT, ShapeT]):
    """The candidates of one op."""

    def __init__(self, op: str) -> None:
        self.op = op
        self.version = 0  # grows with every change, for those who keep what `select` gave
        self.last: str | None = None  # the candidate that was selected last, for who has to say what computed
        self._candidates: list[Candidate[RunT, ShapeT]] = []
        self._names: list[str] = []
        self._refused: dict[str, str] = {}
        self._selected: dict[ShapeT, Candidate[RunT, ShapeT]] = {}

    def add(
        self, name: str, make: Callable[[], RunT], refusal: Callable[[ShapeT], str | None] = lambda shape: None
    ) -> None:
        """Append a candidate. One whose op is not available is kept as refused, with the reason."""
        self._names.append(name)
        try:
            run = make()
        except OpUnavailable as error:
            self._refused[name] = str(error)
            return
        self._candidates.append(Candidate(name, run, refusal))

    def candidates(self) -> tuple[CandidateStatus, ...]:
        """All that were ever added, in order of preference."""
        return tuple(CandidateStatus(name, self._refused.get(name)) for name in self._names)

    def select(self, shape: ShapeT) -> Candidate[RunT, ShapeT]:
        """The first candidate that takes the shape.

        Raises: NoCandidate.
        """
        selected = self._selected.get(shape)
        if selected is None:
            selected = self._selected[shape] = self._first(shape)
        self.last = selected.name
        return selected

    @property
    def available(self) -> tuple[Candidate[RunT, ShapeT], ...]:
        """Those that are not out, in order of preference."""
        return tuple(self._candidates)

    def reject(self, name: str, reason: str) -> None:
        """Take a candidate out, for all shapes."""
        self._check(name)
        self._candidates = [candidate for candidate in self._candidates if candidate.name != name]
        self._refused[name] = reason
        self._changed()

    def use(self, name: str) -> None:
        """Prefer a candidate to all others. Raises: NoCandidate, if it is out."""
        self._check(name)
        if name in self._refused:
            raise NoCandidate(f"{self.op}: {name} cannot be used: {self._refused[name]}")
        self._candidates.sort(key=lambda candidate: candidate.name != name)
        self._names.sort(key=lambda other: other != name)
        self._changed()

    def reorder(self, names: Sequence[str]) -> None:
        """Prefer candidates in this order, all of which are named."""
        self._candidates.sort(key=lambda candidate: names.index(candidate.name))
        self._names.sort(key=names.index)
        self._changed()

    def _check(self, name: str) -> None:
        if name not in self._names:
            raise ValueError(f"{self.op} has no candidate {name}; it has {', '.join(self._names)}")

    def _changed(self) -> None:
        self._selected.clear()
        self.version += 1

    def _first(self, shape: ShapeT) -> Candidate[RunT, ShapeT]:
        reasons = [f"{name}: {reason}" for name, reason in self._refused.items()]
        passed: list[str] = []
        for candidate in self._candidates:
            reason = candidate.refusal(shape)
            if reason is None:
                if passed:
                    logger.info("%s of %s: using %s (%s)", self.op, shape, candidate.name, "; ".join(passed))
                return candidate
            passed.append(f"{candidate.name}: {reason}")
        raise NoCandidate(f"{self.op} of {shape} cannot be computed: {'; '.join([*reasons, *passed])}")
