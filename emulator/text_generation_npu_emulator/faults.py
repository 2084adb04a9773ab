"""Ops that go wrong on purpose, to show that a self-check notices.

`TEXT_GENERATION_NPU_EMULATOR_FAULTS` lists them: "npu_rms_norm=noise, mm=rows:16". Names are those of ops without
namespace and overload; "*" is every op of npu:: and atb::. Faults:

    noise      random values of about the right size
    zeros
    stale      the values of the call before, repeated or cut to the size
    rows:K     right for up to K rows, noise in the rows beyond
    raises     an error at the call, as when a kernel is not in the package
    slow:MS    right, after so many milliseconds
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

_PLAIN = ("noise", "zeros", "stale", "raises")
_NUMBERED = ("rows", "slow")


class InjectedError(RuntimeError):
    """The error of `raises`."""


@dataclass(slots=True)
class Fault:
    """One faulty op."""

    op: str
    kind: str
    number: int = 0
    num_spoiled: int = 0  # results that it has touched
    _stale: dict[tuple[int, torch.dtype], Tensor] = field(default_factory=dict)
    _generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def before(self) -> None:
        """What happens before the kernel runs."""
        if self.kind == "raises":
            raise InjectedError(f"{self.op}: OPS function error: {self.op}, error code 500002 (injected)")
        if self.kind == "slow":
            time.sleep(self.number / 1000)

    def apply(self, result: Tensor, place: int) -> Tensor:
        """What becomes of a result: a host tensor, the op's `place`-th. Never changes `result` itself."""
        if self.kind in ("raises", "slow") or result.numel() == 0:
            return result
        if self.kind == "rows" and (result.dim() == 0 or result.shape[0] <= self.number):
            return result
        self.num_spoiled += 1
        if self.kind == "zeros":
            return torch.zeros_like(result)
        if self.kind == "noise":
            return self._noise(result)
        if self.kind == "rows":
            spoiled = result.clone()
            spoiled[self.number :] = self._noise(result[self.number :])
            return spoiled
        earlier = self._stale.get((place, result.dtype))
        self._stale[place, result.dtype] = result.reshape(-1).clone()
        if earlier is None:
            return result
        repeats = -(-result.numel() // earlier.numel())
        return earlier.repeat(repeats)[: result.numel()].reshape(result.shape)

    def _noise(self, result: Tensor) -> Tensor:
        if not result.dtype.is_floating_point:
            return result.flip(0) if result.dtype == torch.bool else torch.zeros_like(result)
        finite = result.float().nan_to_num(0.0, 0.0, 0.0)
        size = finite.pow(2).mean().sqrt().clamp(min=1e-3)
        return (torch.randn(result.shape, generator=self._generator) * size).to(result.dtype)


def parse_faults(text: str) -> dict[str, Fault]:
    """The faults of a list, by op.

    Raises: ValueError naming the part that is not understood.
    """
    faults = {}
    for part in (piece.strip() for piece in text.replace(";", ",").split(",")):
        if not part:
            continue
        op, _, what = part.partition("=")
        kind, _, number = what.partition(":")
        known = (kind in _PLAIN and not number) or (kind in _NUMBERED and number.isdigit())
        if not op or not known:
            raise ValueError(f"fault {part!r} is not understood; write op=noise|zeros|stale|raises|rows:K|slow:MS")
        faults[op] = Fault(op, kind, int(number or 0))
    return faults
