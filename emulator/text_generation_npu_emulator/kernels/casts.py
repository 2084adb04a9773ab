"""Formats and dtypes: casts, what a tensor reports, and allocation in a format."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from text_generation_npu_emulator.formats import FRACTAL_NZ, ND
from text_generation_npu_emulator.launch import Call
from text_generation_npu_emulator.operators import check_has_dtype, kernel
from text_generation_npu_emulator.streams import index_of
from text_generation_npu_emulator.tensors import contiguous_stride

_ACLNN_CAST_SINCE = (9, 1)  # CANN; its cast does not look at allow_internal_format


def _wanted_format(call: Call, tensor: Tensor, wanted: int) -> int:
    """What a cast to a format really gives."""
    call.require(wanted in (ND, FRACTAL_NZ), f"format {wanted} is not emulated")
    if wanted == ND:
        return ND
    machine = call.machine
    if len(machine.tensors.base_shape(tensor)) < 2:  # whatever the tensor itself is viewed as
        message = "Cannot create tensor with NZ format while dim < 2, tensor will be created with ND format."
        machine.warn_once(message, on_stderr=True)
        return ND
    by_aclnn = call.soc.aclnn_only or (
        call.soc.family in ("A2", "A3") and machine.settings.cann_release >= _ACLNN_CAST_SINCE
    )
    if not by_aclnn and not machine.allow_internal_format:
        machine.warn_once(
            "Cannot create tensor with internal format while allow_internal_format=False, "
            "tensor will be created with base format.",
            on_stderr=True,
        )
        return ND
    if call.soc.aclnn_only:
        call.require(1 not in tensor.shape[-2:], f"no axis of FRACTAL_NZ may be 1, got {tuple(tensor.shape)}")
    return FRACTAL_NZ


def _cast(call: Call, tensor: Tensor, wanted: int) -> Tensor:
    """What is cast is the tensor that was allocated; a view of it becomes the same view of the result."""
    tensors = call.machine.tensors
    if tensors.format_of(tensor) == wanted:
        return tensor
    target = _wanted_format(call, tensor, wanted)
    return tensors.to_nd(tensor) if target == ND else tensors.to_nz(tensor)


def _check_customized(call: Call, customize_dtype: int | None, input_dtype: int | None) -> None:
    call.require(
        customize_dtype is None and input_dtype is None, "casts that change the block's width are not emulated"
    )


@kernel("npu_format_cast", nz=("input", "dst"), capture_refusal="it allocates in another format")
def format_cast(
    call: Call,
    input: Tensor,
    acl_format: int | None = None,
    dst: Tensor | None = None,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> Tensor:
    """A new tensor in a format, or the old one if it is in that already."""
    _check_customized(call, customize_dtype, input_dtype)
    return _cast(call, input, _target(call, acl_format, dst))


@kernel("npu_format_cast_", nz=("input", "src"), capture_refusal="it allocates in another format")
def format_cast_(
    call: Call,
    input: Tensor,
    acl_format: int | None = None,
    src: Tensor | None = None,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> Tensor:
    """The same in place: the tensor gets another storage, and views of the old one keep that."""
    _check_customized(call, customize_dtype, input_dtype)
    made = _cast(call, input, _target(call, acl_format, src))
    if made is not input:
        call.machine.tensors.replace(input, made)
    return input


def _target(call: Call, acl_format: int | None, like: Tensor | None) -> int:
    if like is not None:
        return call.machine.tensors.format_of(like)
    assert acl_format is not None
    return acl_format


@kernel("get_npu_format", nz=("input",), host_only=True)
def get_npu_format(call: Call, input: Tensor) -> int:
    return call.machine.tensors.format_of(input)


@kernel("get_storage_size", nz=("input",), host_only=True)
def get_storage_size(call: Call, input: Tensor) -> int:
    return call.machine.tensors.storage_numel(input)


@kernel("empty_with_format", host_only=True, also_on=("A5",))
def empty_with_format(
    call: Call,
    size: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: object = None,
    device: torch.device | None = None,
    acl_format: int = ND,
) -> Tensor:
    machine = call.machine
    dtype = dtype or torch.get_default_dtype()
    check_has_dtype(machine, call.name, dtype)
    index = index_of(device)
    if len(size) >= 2 and acl_format == FRACTAL_NZ and machine.allow_internal_format:
        return machine.tensors.empty_nz(size, dtype, index)
    return machine.tensors.empty(size, contiguous_stride(size), dtype, index)


@kernel("npu_dtype_cast", "_npu_dtype_cast")
def dtype_cast(call: Call, input: Tensor, dtype: torch.dtype | int) -> Tensor:
    """The dtype is a number in the public op and a ScalarType in the private one; both mean the same."""
    wanted = dtype if isinstance(dtype, torch.dtype) else _SCALAR_TYPES.get(dtype)
    call.require(wanted is not None, f"dtype {dtype} is not supported")
    assert wanted is not None
    check_has_dtype(call.machine, call.name, wanted)
    call.require(wanted != torch.float64, "float64 is not supported by any NPU")
    return call.read(input).to(wanted)


_SCALAR_TYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    11: torch.bool,
    15: torch.bfloat16,
}
