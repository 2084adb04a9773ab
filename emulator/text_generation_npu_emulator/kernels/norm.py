"""RMS norms."""

from __future__ import annotations

import torch
from torch import Tensor

from text_generation_npu_emulator.launch import Call
from text_generation_npu_emulator.operators import kernel

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_BYTES_OF_A_VECTOR = 32


def _normalize(wide: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    reciprocal = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return wide * reciprocal * gamma, reciprocal


def _check(call: Call, x: Tensor, gamma: Tensor) -> None:
    call.require(x.dtype in _FLOATS, f"x must be a float tensor, got {x.dtype}")
    call.require(x.shape[x.dim() - gamma.dim() :] == gamma.shape, f"gamma {tuple(gamma.shape)} must be x's last axes")
    if call.soc.only_saturates:
        call.require(gamma.dtype == x.dtype, f"gamma must have x's dtype {x.dtype}, got {gamma.dtype}")
    else:
        call.require(gamma.dtype in (x.dtype, torch.float32), f"gamma must be {x.dtype} or float32, got {gamma.dtype}")
    if call.soc.family == "310P":
        call.require(
            x.shape[-1] * x.element_size() >= _BYTES_OF_A_VECTOR, f"the last axis must have 32 bytes, got {x.shape[-1]}"
        )


@kernel("npu_rms_norm")
def rms_norm(call: Call, input: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """(y, 1 / rms), the second in float32."""
    _check(call, input, gamma)
    call.require(gamma.dim() == 1, "gamma of more than one axis is not emulated")
    y, reciprocal = _normalize(call.read(input).float(), call.read(gamma).float(), epsilon)
    return y.to(input.dtype), reciprocal


@kernel("npu_add_rms_norm")
def add_rms_norm(call: Call, x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """(y, 1 / rms, x1 + x2). The sum is normalized before it is rounded."""
    call.require(x1.numel() > 0, "empty tensors are not allowed")
    call.require(x1.shape == x2.shape, f"x1 {tuple(x1.shape)} and x2 {tuple(x2.shape)} must have one shape")
    call.require(x1.dtype == x2.dtype == gamma.dtype, f"dtypes differ: {x1.dtype}, {x2.dtype}, gamma {gamma.dtype}")
    _check(call, x1, gamma)
    total = call.read(x1).float() + call.read(x2).float()
    y, reciprocal = _normalize(total, call.read(gamma).float(), epsilon)
    if call.soc.family == "310P":
        reciprocal = torch.zeros_like(reciprocal)  # documented as not valid there
    return y.to(x1.dtype), reciprocal, total.to(x1.dtype)
