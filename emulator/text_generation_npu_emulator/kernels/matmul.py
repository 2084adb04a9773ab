"""Matrix products of npu:: and atb::."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from text_generation_npu_emulator.aten import check_nz_operands
from text_generation_npu_emulator.launch import Call
from text_generation_npu_emulator.operators import kernel


@kernel("npu_linear", nz=("input", "weight"))
def linear(call: Call, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """input @ weight.T + bias, by the legacy kernel."""
    call.require(input.dim() == weight.dim() == 2, "input and weight must be matrices")
    call.require(input.dtype == weight.dtype, f"dtypes differ: {input.dtype}, {weight.dtype}")
    call.require(input.dtype in (torch.float16, torch.float32), f"{input.dtype} is not supported")
    check_nz_operands(call, input, weight)
    out = torch.mm(call.read_float32(input), call.read_float32(weight).t())
    if bias is not None:
        out = out + call.read_float32(bias)
    return out.to(input.dtype)


@kernel("npu_bmmV2", nz=("input", "mat2"))
def bmm(call: Call, input: Tensor, mat2: Tensor, output_sizes: Sequence[int]) -> Tensor:
    call.require(input.dtype == mat2.dtype, f"dtypes differ: {input.dtype}, {mat2.dtype}")
    check_nz_operands(call, input, mat2)
    out = torch.matmul(call.read_float32(input), call.read_float32(mat2)).to(input.dtype)
    return out.reshape(list(output_sizes)) if output_sizes else out


@kernel("_npu_matmul_add_fp32")
def matmul_add_fp32(call: Call, x: Tensor, weight: Tensor, C: Tensor) -> None:  # noqa: N803
    """C += x.T @ weight."""
    call.require(x.dtype == weight.dtype, f"dtypes differ: {x.dtype}, {weight.dtype}")
    call.require(C.dtype == torch.float32, f"C must be float32, got {C.dtype}")
    call.store(C, call.read(C) + torch.mm(call.read(x).float().t(), call.read(weight).float()))


@kernel("npu_prefetch", nz=("input", "dependency"))
def prefetch(call: Call, input: Tensor, dependency: Tensor | None, max_size: int, offset: int = 0) -> None:
    """Moves nothing here."""
    call.require(max_size > 0, f"max_size must be positive, got {max_size}")
