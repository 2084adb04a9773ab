"""x @ weight.T + bias, for weights in ND or NZ. The format of the weight decides which kernel torch_npu launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from text_generation_kernels.dtypes import dtype_name
from text_generation_kernels.npu.candidates import Choice
from text_generation_kernels.npu.schemas import InstalledOps
from text_generation_kernels.npu.soc import Family


@dataclass(frozen=True, slots=True)
class LinearShape:
    """What decides which product will do."""

    layout: str  # of the weight: "nd" or "nz"
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)} {self.layout}"


Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def linear_candidates(installed: InstalledOps, family: Family) -> Choice[Linear, LinearShape]:
    choice: Choice[Linear, LinearShape] = Choice("linear")
    # Uses the strict transpose of the weight, the one view of an NZ weight that costs nothing.
    choice.add("matmul", lambda: F.linear)
    if family.name != "A5":
        choice.add("npu_linear", lambda: _npu_linear(installed))
    choice.add("composed", lambda: _composed, lambda shape: None if shape.layout == "nd" else "it takes ND only")
    return choice


def _npu_linear(installed: InstalledOps) -> Linear:
    op = installed.bind("npu_linear", "input", "weight", "bias")

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y: Tensor = op(input=x, weight=weight, bias=bias)
        return y

    return linear


def _composed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product of another kernel, batched with a batch of one, and the addition apart."""
    y = torch.bmm(x.unsqueeze(0), weight.t().unsqueeze(0)).squeeze(0)
    return y if bias is None else y + bias
