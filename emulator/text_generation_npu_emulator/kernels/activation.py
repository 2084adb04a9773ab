"""Activations, and the softmax that takes a mask."""

from __future__ import annotations

import torch
from torch import Tensor

from text_generation_npu_emulator.launch import Call
from text_generation_npu_emulator.operators import kernel


@kernel("npu_swiglu")
def swiglu(call: Call, input: Tensor, dim: int) -> Tensor:
    """silu(first half) * second half."""
    call.require(input.numel() > 0, "empty tensors are not allowed")
    call.require(input.is_contiguous(), "the input must be contiguous")
    call.require(input.shape[dim] % 2 == 0, f"axis {dim} must be even, got {input.shape[dim]}")
    if call.soc.family == "310P":
        call.require(input.shape[-1] % 32 == 0, f"the last axis must be a multiple of 32, got {input.shape[-1]}")
    gate, up = call.read(input).float().chunk(2, dim)
    return (torch.nn.functional.silu(gate) * up).to(input.dtype)


@kernel("npu_silu")
def silu(call: Call, input: Tensor) -> Tensor:
    return torch.nn.functional.silu(call.read(input).float()).to(input.dtype)


@kernel("npu_scaled_masked_softmax")
def scaled_masked_softmax(call: Call, x: Tensor, mask: Tensor, scale: float, fixed_triu_mask: bool) -> Tensor:
    """softmax(x * scale), with -10000 where the mask is True."""
    call.require(x.dim() == 4, f"x must have four axes, got {x.dim()}")
    for size in x.shape[-2:]:
        call.require(
            32 <= size <= 4096 and size % 32 == 0, f"the last axes must be 32..4096 by 32, got {tuple(x.shape)}"
        )
    call.require(mask.dtype == torch.bool, f"the mask must be bool, got {mask.dtype}")
    call.require(not fixed_triu_mask, "fixed_triu_mask must be False")
    scores = (call.read(x).float() * scale).masked_fill(call.read(mask), -10000.0)
    return scores.softmax(-1).to(x.dtype)
