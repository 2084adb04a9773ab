"""silu(gate) * up for x = [gate | up]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from text_generation_kernels.npu.candidates import Choice
from text_generation_kernels.npu.schemas import InstalledOps
from text_generation_kernels.npu.soc import Family

_WIDTH_MULTIPLE_310P = 32


@dataclass(frozen=True, slots=True)
class GatedShape:
    """What decides which activation will do."""

    width: int  # of gate and up together
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"width {self.width}"


SiluAndMul = Callable[[Tensor], Tensor]


def silu_candidates(installed: InstalledOps, family: Family) -> Choice[SiluAndMul, GatedShape]:
    choice: Choice[SiluAndMul, GatedShape] = Choice("silu_and_mul")
    if family.name == "A1":
        choice.add("npu_silu", lambda: _silu(installed))
    else:
        choice.add("npu_swiglu", lambda: _swiglu(installed), _swiglu_refusal(family))
    choice.add("composed", lambda: composed_silu_and_mul)
    return choice


def composed_silu_and_mul(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return (F.silu(gate.float()) * up.float()).to(x.dtype)


def _swiglu(installed: InstalledOps) -> SiluAndMul:
    op = installed.bind("npu_swiglu", "input", "dim")

    def silu_and_mul(x: Tensor) -> Tensor:
        y: Tensor = op(input=x.contiguous(), dim=-1)
        return y

    return silu_and_mul


def _silu(installed: InstalledOps) -> SiluAndMul:
    op = installed.bind("npu_silu", "input")

    def silu_and_mul(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        y: Tensor = op(input=gate.contiguous()) * up
        return y

    return silu_and_mul


def _swiglu_refusal(family: Family) -> Callable[[GatedShape], str | None]:
    def refusal(shape: GatedShape) -> str | None:
        if family.name == "310P" and shape.width % _WIDTH_MULTIPLE_310P:
            return f"on this chip the width must be a multiple of {_WIDTH_MULTIPLE_310P}, not {shape.width}"
        return None

    return refusal
