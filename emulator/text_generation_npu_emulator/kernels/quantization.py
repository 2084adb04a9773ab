"""Products with weights in int8 and int4, and what makes such tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from text_generation_npu_emulator.launch import Call
from text_generation_npu_emulator.operators import check_has_dtype, kernel

_MAX_AXIS = 65535
_INT8, _FLOAT16, _BFLOAT16, _INT32 = 1, 5, 15, 3  # numbers of torch's scalar types
_OUTPUTS = {_INT8: torch.int8, _FLOAT16: torch.float16, _BFLOAT16: torch.bfloat16, _INT32: torch.int32}
# The fixpipe unit reads 19 bits of a scale.
_SCALE_BITS = 0xFFFFE000
_SCALE_FLAG = 1 << 46


def _check_axes(call: Call, *tensors: Tensor) -> None:
    for tensor in tensors:
        call.require(max(tensor.shape[-2:]) <= _MAX_AXIS, f"axes may have 65535 elements, got {tuple(tensor.shape)}")


@kernel("npu_trans_quant_param")
def trans_quant_param(call: Call, scale: Tensor, offset: Tensor | None, round_mode: int | None = 0) -> Tensor:
    """float32 scales as the int64 words that the output unit reads. An offset takes bits 37..45."""
    call.require(scale.dtype == torch.float32, f"scale must be float32, got {scale.dtype}")
    call.require(round_mode == 0, "round_mode 1 is not emulated")
    bits = call.read(scale).contiguous().view(torch.int32).long() & 0xFFFFFFFF
    word = (bits & _SCALE_BITS) | _SCALE_FLAG
    if offset is not None:
        word = word | ((call.read(offset).round().long() & 0x1FF) << 37)
    return word


def _scales(call: Call, scale: Tensor) -> Tensor:
    values = call.read(scale)
    if values.dtype == torch.int64:
        return (values & _SCALE_BITS).to(torch.int64).to(torch.uint32).view(torch.float32)
    return values.float()


@kernel("npu_quant_matmul", nz=("x2",))
def quant_matmul(
    call: Call,
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    offset: Tensor | None,
    pertoken_scale: Tensor | None,
    bias: Tensor | None,
    output_dtype: int | None,
) -> Tensor:
    """(x1 @ x2 + bias) * scale * pertoken_scale. The result is int8 unless output_dtype says something else."""
    call.require(x1.dtype == x2.dtype == torch.int8, f"x1 and x2 must be int8, got {x1.dtype}, {x2.dtype}")
    call.require(x1.shape[-1] == x2.shape[-2], f"shapes do not fit: {tuple(x1.shape)} @ {tuple(x2.shape)}")
    _check_axes(call, x1, x2)
    wanted = _INT8 if output_dtype is None else output_dtype
    call.require(wanted in _OUTPUTS, f"output_dtype {output_dtype} is not supported")
    scale_dtypes = (torch.float32, torch.int64, torch.bfloat16)
    call.require(scale.dtype in scale_dtypes, f"scale must be float32, int64 or bfloat16, got {scale.dtype}")
    call.require(scale.numel() in (1, x2.shape[-1]), f"scale must have 1 or {x2.shape[-1]} values, got {scale.numel()}")
    if call.soc.family == "310P":
        call.require(pertoken_scale is None, "pertoken_scale is not supported by this chip")
        call.require(wanted in (_INT8, _FLOAT16), "the result can only be int8 or float16 on this chip")
        call.require(
            scale.dtype == torch.int64 or wanted == _FLOAT16, "int8 results need scales of npu_trans_quant_param"
        )
    if pertoken_scale is not None:
        call.require(
            pertoken_scale.dtype == torch.float32, f"pertoken_scale must be float32, got {pertoken_scale.dtype}"
        )
        call.require(wanted in (_FLOAT16, _BFLOAT16), "pertoken_scale needs a float16 or bfloat16 result")
    check_has_dtype(call.machine, call.name, _OUTPUTS[wanted])
    if wanted == _BFLOAT16:
        call.require(scale.dtype in (torch.float32, torch.bfloat16), "bfloat16 results need float32 or bfloat16 scales")
    # Sums of products of int8 are exact in float64.
    product = torch.matmul(call.read(x1).double(), call.read(x2).double())
    if bias is not None and bias.dtype == torch.int32:
        product = product + call.read(bias).double()
    if wanted == _INT32:
        return product.to(torch.int32)
    out = product.float() * _scales(call, scale)
    if pertoken_scale is not None:
        out = out * call.read(pertoken_scale)[..., None]
    if bias is not None and bias.dtype != torch.int32:
        out = out + call.read(bias).float()
    if wanted == _INT8:
        if offset is not None:
            out = out + call.read(offset).float()
        return out.round().clamp(-128, 127).to(torch.int8)
    call.require(offset is None, "offset needs an int8 result")
    return out.to(_OUTPUTS[wanted])


@kernel("npu_dynamic_quant")
def dynamic_quant(
    call: Call,
    input: Tensor,
    smooth_scales: Tensor | None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
) -> tuple[Tensor, Tensor]:
    """(int8 rows, their float32 scales)."""
    call.require(
        input.dtype in (torch.float16, torch.bfloat16), f"input must be float16 or bfloat16, got {input.dtype}"
    )
    call.require(dst_type in (None, _INT8), f"dst_type {dst_type} is not emulated")
    call.require(quant_mode == "pertoken", f"quant_mode {quant_mode!r} is not emulated")
    wide = call.read(input).float()
    if smooth_scales is not None:
        wide = wide * call.read(smooth_scales).float()
    scale = wide.abs().amax(-1) / 127
    rows = (wide / scale.clamp(min=1e-30)[..., None]).round().clamp(-128, 127)
    return rows.to(torch.int8), scale


@kernel("npu_convert_weight_to_int4pack")
def convert_weight_to_int4pack(call: Call, weight: Tensor, inner_k_tiles: int) -> Tensor:
    """Eight int4 in each int32, the first in the lowest bits."""
    call.require(weight.dtype == torch.int32, f"weight must be int32, got {weight.dtype}")
    call.require(
        weight.dim() == 2 and weight.shape[-1] % 8 == 0, f"the last axis must be a multiple of 8: {tuple(weight.shape)}"
    )
    values = call.read(weight).long()
    call.require(bool(((values >= -8) & (values <= 7)).all()), "values must lie within -8..7")
    eight = (values & 0xF).reshape(len(values), -1, 8)
    word = (eight << (4 * torch.arange(8, device="cpu"))).sum(-1)
    return torch.where(word >= 1 << 31, word - (1 << 32), word).to(torch.int32)


def _unpack_int4(words: Tensor) -> Tensor:
    shifts = 4 * torch.arange(8, device="cpu")
    values = (words.long()[..., None] >> shifts) & 0xF
    return torch.where(values > 7, values - 16, values).flatten(-2)


@kernel("npu_weight_quant_batchmatmul", nz=("weight",))
def weight_quant_batchmatmul(
    call: Call,
    x: Tensor,
    weight: Tensor,
    antiquant_scale: Tensor,
    antiquant_offset: Tensor | None,
    bias: Tensor | None,
    antiquant_group_size: int,
    inner_precise: int = 0,
) -> Tensor:
    """x @ ((weight + offset) * scale) + bias, the weight int8, or int4 in words of int32."""
    allowed = (torch.float16,) if call.soc.only_saturates else (torch.float16, torch.bfloat16)
    call.require(x.dtype in allowed, f"{x.dtype} is not supported")
    call.require(not call.is_nz(weight), "a weight in FRACTAL_NZ is only supported in graph mode (torchair)")
    call.require(weight.dtype in (torch.int8, torch.int32), f"weight must be int8 or int32, got {weight.dtype}")
    call.require(weight.dtype == torch.int8 or call.soc.family != "310P", "int4 weights are not supported by this chip")
    call.require(antiquant_scale.dtype == x.dtype, f"antiquant_scale must be {x.dtype}, got {antiquant_scale.dtype}")
    values = call.read(weight)
    if weight.dtype == torch.int32:
        # A transposed view has its words along the first axis.
        transposed = weight.stride(0) == 1 and weight.stride(1) != 1
        values = _unpack_int4(values.t()).t() if transposed else _unpack_int4(values)
    k, n = values.shape
    call.require(x.shape[-1] == k, f"shapes do not fit: {tuple(x.shape)} @ {(k, n)}")
    call.require(max(k, n) <= _MAX_AXIS, f"axes may have 65535 elements, got {(k, n)}")
    group = antiquant_group_size
    scale = call.read(antiquant_scale).float()
    shift = None if antiquant_offset is None else call.read(antiquant_offset).float()
    wide = values.float()
    if group:
        call.require(group % 32 == 0 and 32 <= group <= k - 1, f"groups must be 32..{k - 1} by 32, got {group}")
        expected = (-(-k // group), n)
        call.require(tuple(scale.shape) == expected, f"antiquant_scale must be {expected}, got {tuple(scale.shape)}")
        scale = scale.repeat_interleave(group, 0)[:k]
        shift = None if shift is None else shift.repeat_interleave(group, 0)[:k]
    else:
        call.require(scale.numel() == n, f"antiquant_scale must have {n} values, got {scale.numel()}")
        scale = scale.reshape(1, n)
        shift = None if shift is None else shift.reshape(1, n)
    out = torch.matmul(call.read(x).float(), (wide if shift is None else wide + shift) * scale)
    if bias is not None:
        wanted = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
        call.require(bias.dtype == wanted, f"bias must be {wanted}, got {bias.dtype}")
        out = out + call.read(bias).float()
    return out.to(x.dtype)
