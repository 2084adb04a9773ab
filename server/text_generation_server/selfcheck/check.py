"""The self-check of a start: ops before the weights are loaded, since they may decide how these are laid out, then the
model. What an earlier start found about the very same things is taken over instead.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import torch

from text_generation_kernels.checks.checking import check_ops
from text_generation_kernels.checks.findings import OpFinding
from text_generation_kernels.checks.samples import samples
from text_generation_kernels.errors import first_line
from text_generation_kernels.interface import Device
from text_generation_kernels.npu.candidates import NoCandidate
from text_generation_kernels.npu.ops import NpuOps
from text_generation_server.models.causal_lm import CausalLM
from text_generation_server.parallel import GroupError, TensorParallelGroup
from text_generation_server.selfcheck.kept import KeptVerdicts, Subject, versions_of
from text_generation_server.selfcheck.layers import ModelComparison
from text_generation_server.selfcheck.verdict import ModelFinding, Verdict

logger = logging.getLogger(__name__)

_REPORT = "please report it, with the file that `text-generation-server report` writes"
_HAS_FALLEN_BACK = "--kernels strict takes no other way of computing than the first"


class SelfCheckFailed(RuntimeError):
    """The device or the model computes wrongly, and nothing is left to compute with. The message is one line."""


class SelfCheck:
    """One rank's. All ranks make the same calls in the same order.

    Args:
        strict: whether it is an error to need another candidate than the first.
    """

    def __init__(
        self, subject: Subject, group: TensorParallelGroup, kept: KeptVerdicts | None, *, strict: bool = False
    ) -> None:
        self.subject = subject
        self._group = group
        self._kept = kept
        self._strict = strict
        self._seconds = 0.0
        self._ops: tuple[OpFinding, ...] = ()
        self._earlier: Verdict | None = None

    def check_ops(self) -> tuple[OpFinding, ...]:
        """Raises: SelfCheckFailed."""
        earlier = None if self._kept is None else self._kept.find(self.subject)
        # One rank that has to check needs the others for it.
        if self._group.all_reduce_min(earlier is not None) and earlier is not None:
            self._earlier = earlier
            self._ops = earlier.ops
            self._take_over(earlier)
        else:
            started_s = time.monotonic()
            try:
                self._ops = check_ops(self._device, samples(self.subject.sizes))
            except torch.OutOfMemoryError as error:
                reason = first_line(error)
                raise SelfCheckFailed(
                    f"self-check: the memory of {self._device.name} runs out before a model is loaded ({reason}); free "
                    f"it, or leave the check out with --skip-selfcheck"
                ) from None
            self._check_sums()
            self._seconds = time.monotonic() - started_s
        self._require_right_ops()
        return self._ops

    def check_model(self, model: CausalLM, folder: Path) -> Verdict:
        """Compare the loaded model, keep the verdict, and say what came out.

        Raises: SelfCheckFailed.
        """
        if self._earlier is not None:
            logger.info(
                "self-check of %s: taken from %s, same device, versions and model",
                self._device.name,
                self._earlier.checked_at,
            )
            return self._earlier
        started_s = time.monotonic()
        comparison = ModelComparison(model, folder, self._group, self.subject.sizes.block_size)
        findings, preferred = self._settle(comparison)
        self._seconds += time.monotonic() - started_s
        verdict = self.verdict(findings, preferred)
        logger.info("self-check of %s: %s", self._device.name, _summary(verdict))
        if self._kept is not None:
            self._kept.keep(self.subject, verdict)
        return verdict

    def verdict(self, model: tuple[ModelFinding, ...] = (), preferred: tuple[tuple[str, str], ...] = ()) -> Verdict:
        return Verdict(
            chip=self._device.name,
            versions=versions_of(self._device, os.environ),
            ops=self._ops,
            model=model,
            preferred=preferred,
            seconds=round(self._seconds, 2),
            checked_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )

    @property
    def _device(self) -> Device:
        return self.subject.device

    def _take_over(self, earlier: Verdict) -> None:
        """Use what was found to be right, without running it."""
        ops = self._device.ops
        if not isinstance(ops, NpuOps):
            return
        for finding in earlier.ops:
            choice = ops.choices.get(finding.op)
            for rejection in finding.rejections if choice is not None else ():
                assert choice is not None
                if rejection.candidate in (candidate.name for candidate in choice.available):
                    choice.reject(rejection.candidate, rejection.reason)
                    logger.warning(
                        "self-check: %s by %s is not used on %s: %s",
                        *(finding.op, rejection.candidate, self._device.name, rejection.reason),
                    )
        for op, candidate in earlier.preferred:
            ops.use(op, candidate)

    def _check_sums(self) -> None:
        """A sum over ranks whose result is known: every rank gives its number plus one."""
        group = self._group
        if group.world_size == 1:
            return
        ops = self._device.ops
        for num_tokens in (1, 33):
            shape = (num_tokens, self.subject.sizes.hidden_size)
            given = torch.full(shape, group.rank + 1.0, dtype=ops.activation_dtype).to(self._device.torch_device)
            total = group.all_reduce(given).cpu().float()
            expected = group.world_size * (group.world_size + 1) / 2
            if not bool((total == expected).all()):
                raise SelfCheckFailed(
                    f"self-check: the sum over {group.world_size} ranks is {float(total.min()):g} to "
                    f"{float(total.max()):g} and not {expected:g} on {self._device.name}; check HCCL (cables, "
                    f"HCCL_IF_IP, versions of driver and CANN); {_REPORT}"
                )

    def _require_right_ops(self) -> None:
        wrong = [finding for finding in self._ops if not finding.is_right]
        for finding in wrong[1:]:
            logger.error("%s", self._nothing_left(finding))
        if wrong:
            raise SelfCheckFailed(self._nothing_left(wrong[0]))
        fallen = [(finding, finding.rejections[0]) for finding in self._ops if finding.rejections]
        if self._strict and fallen:
            finding, rejection = fallen[0]
            raise SelfCheckFailed(
                f"self-check: {finding.op} by {rejection.candidate} is wrong on {self._device.name} "
                f"({rejection.reason}), and {_HAS_FALLEN_BACK}"
            )

    def _nothing_left(self, finding: OpFinding) -> str:
        reasons = "; ".join(f"{rejection.candidate}: {rejection.reason}" for rejection in finding.rejections)
        return (
            f"self-check: {finding.op} is wrong on {self._device.name} in every way there is ({reasons}); "
            f"no text from this device can be trusted; {_REPORT}"
        )

    def _settle(self, comparison: ModelComparison) -> tuple[tuple[ModelFinding, ...], tuple[tuple[str, str], ...]]:
        """Compare; where the model is wrong though every op is right, try other candidates, one op at a time, then
        plain torch for all."""
        findings = self._findings(comparison)
        wrong = next((finding.wrong for finding in findings if finding.wrong), None)
        if self._is_right(findings):
            return findings, ()
        said = (
            f"self-check: the model is wrong on {self._device.name}, though each op is right: {wrong or 'see rank 0'}"
        )
        ops = self._device.ops
        if isinstance(ops, NpuOps) and not self._strict:
            for changed, restore in _alternatives(ops):
                found = self._findings(comparison)
                if self._is_right(found):
                    using = ", ".join(f"{candidate} for {op}" for op, candidate in changed)
                    logger.warning("%s; using %s", said, using)
                    return found, changed
                restore()
        raise SelfCheckFailed(f"{said}; no other way of computing helps; {_REPORT}")

    def _findings(self, comparison: ModelComparison) -> tuple[ModelFinding, ...]:
        try:
            return comparison.findings()
        except (GroupError, SelfCheckFailed):
            raise
        except RuntimeError as error:  # the device's, whatever its type
            logger.debug("the model could not be run", exc_info=error)
            reason = first_line(error)
            raise SelfCheckFailed(
                f"self-check: the model cannot be run on {self._device.name} ({reason}); {_REPORT}"
            ) from error

    def _is_right(self, findings: tuple[ModelFinding, ...]) -> bool:
        """What rank 0 found, which alone compares."""
        return bool(self._group.all_reduce_min(not any(finding.wrong for finding in findings)))


def _alternatives(ops: NpuOps) -> Iterator[tuple[tuple[tuple[str, str], ...], Callable[[], None]]]:
    """Other ways to compute, in turn: ((op, candidate) that are preferred now, what takes that back).

    The same on every rank, also where a candidate is out on one of them, which then stays with what it has.
    """
    orders = {op: [status.name for status in choice.candidates()] for op, choice in sorted(ops.choices.items())}
    for op, order in orders.items():
        for candidate in sorted(order):
            _prefer(ops, op, candidate)
            yield ((op, candidate),), partial(ops.choices[op].reorder, order)
    composed = tuple((op, order[-1]) for op, order in orders.items())
    for op, candidate in composed:
        _prefer(ops, op, candidate)
    yield composed, lambda: None


def _prefer(ops: NpuOps, op: str, candidate: str) -> None:
    try:
        ops.use(op, candidate)
    except NoCandidate as error:
        logger.debug("%s", error)


def _summary(verdict: Verdict) -> str:
    parts = [
        f"{len(verdict.ops)} ops in {verdict.num_samples} samples are right (largest error {verdict.worst_error:.2g})"
    ]
    if verdict.model:
        largest = max(finding.largest for finding in verdict.model)
        parts.append(f"{len(verdict.model)} parts of the model are as on the CPU, activations up to {largest:.3g}")
    return f"{'; '.join(parts)}; {verdict.seconds:.1f} s"
