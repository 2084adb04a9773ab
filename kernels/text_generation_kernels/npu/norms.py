"""RMS norm, alone and after an addition. The mean of squares is made in float32 by every candidate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from text_generation_kernels.dtypes import dtype_name
from text_generation_kernels.npu.candidates import Choice
from text_generation_kernels.npu.schemas import InstalledOps
from text_generation_kernels.npu.soc import Family

_LEAST_BYTES_310P = 32


@dataclass(frozen=True, slots=True)
class NormShape:
    """What decides which norm will do."""

    size: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.size} {dtype_name(self.dtype)}"


Norm = Callable[[Tensor, Tensor, float], Tensor]  # (x, weight, eps)
AddNorm = Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]  # (x, residual, weight, eps)


def norm_candidates(installed: InstalledOps, family: Family) -> Choice[Norm, NormShape]:
    choice: Choice[Norm, NormShape] = Choice("rms_norm")
    choice.add("npu_rms_norm", lambda: _fused(installed), _width_refusal(family))
    choice.add("composed", lambda: composed_norm)
    return choice


def add_norm_candidates(
    installed: InstalledOps, family: Family, norm: Choice[Norm, NormShape]
) -> Choice[AddNorm, NormShape]:
    """
    Args:
        norm: what the candidate that adds by itself normalizes with.
    """
    choice: Choice[AddNorm, NormShape] = Choice("add_rms_norm")
    if family.name not in ("A1", "310P"):
        choice.add("npu_add_rms_norm", lambda: _fused_add(installed))

    def add_then_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = residual + x
        shape = NormShape(total.shape[-1], total.dtype)
        return norm.select(shape).run(total, weight, eps), total

    choice.add("add and rms_norm", lambda: add_then_norm)
    return choice


def composed_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    inverse_rms = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * inverse_rms * weight.float()).to(x.dtype)


def _fused(installed: InstalledOps) -> Norm:
    op = installed.bind("npu_rms_norm", "input", "gamma", "epsilon")

    def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y: Tensor = op(input=x, gamma=weight, epsilon=eps)[0]
        return y

    return norm


def _fused_add(installed: InstalledOps) -> AddNorm:
    op = installed.bind("npu_add_rms_norm", "x1", "x2", "gamma", "epsilon")

    def add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        y, _, total = op(x1=x, x2=residual, gamma=weight, epsilon=eps)  # the sum comes last, behind 1 / rms
        return y, total

    return add_norm


def _width_refusal(family: Family) -> Callable[[NormShape], str | None]:
    def refusal(shape: NormShape) -> str | None:
        if family.name == "310P" and shape.size * shape.dtype.itemsize < _LEAST_BYTES_310P:
            return f"rows of {shape.size} are under {_LEAST_BYTES_310P} bytes"
        return None

    return refusal
