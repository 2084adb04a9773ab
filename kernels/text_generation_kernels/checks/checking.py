"""Every op in use compared with the reference on its device; candidates that are wrong are taken out on the way."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from text_generation_kernels.checks.findings import OpFinding, Rejection
from text_generation_kernels.checks.places import Place, back
from text_generation_kernels.checks.samples import Sample, by_op
from text_generation_kernels.errors import first_line
from text_generation_kernels.interface import Device
from text_generation_kernels.npu.candidates import Choice, NoCandidate
from text_generation_kernels.npu.ops import NpuOps

logger = logging.getLogger(__name__)

# A small call that takes longer than this is looked into, and given up for one so many times faster. No chip takes so
# long for one token, unless it computes on the host, or compiles every time.
SLOW_S = 0.25
_FASTER = 5.0
_TIMED_RUNS = 3

_ON_THE_CACHE = ("store_kv", "attention_decode", "attention_prefill", "attention_chunk")

Choices = Mapping[str, Choice[Any, Any]]


def check_ops(device: Device, samples: Iterable[Sample], slow_s: float = SLOW_S) -> tuple[OpFinding, ...]:
    """Run every op's samples. Afterwards the ops use what was found to be right, and nothing else.

    Args:
        slow_s: seconds of a small call that make a candidate worth comparing with the next in time, too.
    Returns: one finding for each op, also where no candidate is right: that is the caller's to act on.
    Raises: torch.OutOfMemoryError.
    """
    ops = device.ops
    place = Place(ops, device.torch_device, device.name, ops.activation_dtype)
    choices: Choices = ops.choices if isinstance(ops, NpuOps) else {}
    grouped = by_op(samples)
    checks = {op: _Check(place, choices.get(op), found, slow_s) for op, found in grouped.items()}
    findings: dict[str, OpFinding] = {}
    pending = list(checks)
    while pending:
        seen = _left(choices)
        findings.update((op, checks[op].run()) for op in pending)
        # Who decodes decides the cache's layout, which all that touches the cache was checked in.
        is_changed = any(_left(choices)[op] != seen[op] for op in _ON_THE_CACHE if op in choices)
        pending = [op for op in checks if op in _ON_THE_CACHE and findings[op].is_right] if is_changed else []
    if isinstance(ops, NpuOps):
        ops.weights.count_anew()  # the samples' are no weights of the model
    return tuple(findings.values())


def _left(choices: Choices) -> dict[str, list[str]]:
    """The candidates that are not out, in order of preference."""
    return {op: [candidate.name for candidate in choice.available] for op, choice in choices.items()}


class _Check:
    """The samples of one op."""

    def __init__(self, place: Place, choice: Choice[Any, Any] | None, found: Sequence[Sample], slow_s: float) -> None:
        self._place = place
        self._choice = choice
        self._samples = found
        self._op = found[0].op
        self._slow_s = slow_s
        self._rejections: list[Rejection] = []

    def run(self) -> OpFinding:
        names: tuple[str, ...] = ()
        while True:
            names, worst, wrong = self._pass()
            if wrong is None:
                break
            if not self._reject(names[-1] if names else None, wrong):
                return OpFinding(self._op, (), len(self._samples), worst, tuple(self._rejections))
        if self._choice is not None and self._prefer_a_faster(self._choice):
            names, worst, _ = self._pass()
        return OpFinding(self._op, names, len(self._samples), worst, tuple(self._rejections))

    def _pass(self) -> tuple[tuple[str, ...], float, str | None]:
        """(candidates that computed, in order of use; the largest error; what is wrong with the last of them)."""
        names: dict[str, None] = {}
        worst = 0.0
        for sample in self._samples:
            error, wrong = self._compute(sample)
            name = self._used()
            if name is not None:
                names.pop(name, None)  # the one that failed stands last
                names[name] = None
            worst = max(worst, error)
            if wrong is not None:
                return tuple(names), worst, f"{sample.name}: {wrong}"
        return tuple(names), worst, None

    def _compute(self, sample: Sample) -> tuple[float, str | None]:
        if self._choice is not None:
            self._choice.last = None
        try:
            return sample.error_at(self._place)
        except NoCandidate as error:
            return float("inf"), str(error)
        except torch.OutOfMemoryError:
            raise  # says nothing about the candidate
        except Exception as error:  # a failed launch has any type, and its candidate is then out, whatever it was
            logger.debug("%s of %s failed", self._op, sample.name, exc_info=error)
            return float("inf"), first_line(error)

    def _used(self) -> str | None:
        return self._place.ops.name if self._choice is None else self._choice.last

    def _reject(self, name: str | None, wrong: str) -> bool:
        """Take the candidate out. Returns whether the op has others."""
        self._rejections.append(Rejection(name or "nothing", wrong))
        if self._choice is None or name is None:
            return False
        self._choice.reject(name, wrong)
        left = [candidate.name for candidate in self._choice.available]
        if not left:
            return False
        logger.warning(
            "self-check: %s by %s is wrong on %s (%s); using %s instead",
            self._op,
            name,
            self._place.name,
            wrong,
            left[0],
        )
        return True

    def _prefer_a_faster(self, choice: Choice[Any, Any]) -> bool:
        """Give up a candidate that is right but stands far behind another that is right, too."""
        taken = self._seconds()
        name = self._used()
        if taken < self._slow_s or name is None:
            return False
        order = [status.name for status in choice.candidates()]
        for other in choice.available:
            if other.name == name:
                continue
            choice.use(other.name)
            # What it does not take, another does: that is no trial of it.
            if self._pass()[2] is None:
                seconds = self._seconds()
                if self._used() == other.name and seconds * _FASTER < taken:
                    reason = f"it takes {1e3 * taken:.3g} ms where {other.name} takes {1e3 * seconds:.3g}"
                    self._rejections.append(Rejection(name, reason))
                    choice.reject(name, reason)
                    logger.warning("self-check: %s by %s is slow on %s: %s", self._op, name, self._place.name, reason)
                    return True
            choice.reorder(order)
        logger.warning(
            "self-check: %s by %s is slow on %s: it takes %.3g ms, and nothing faster is left",
            *(self._op, name, self._place.name, 1e3 * taken),
        )
        return False

    def _seconds(self) -> float:
        """The best of some runs of the op's smallest sample, compiled before."""
        times = []
        for _ in range(_TIMED_RUNS):
            started = time.perf_counter()
            back(self._samples[0].compute(self._place))
            times.append(time.perf_counter() - started)
        return min(times)
