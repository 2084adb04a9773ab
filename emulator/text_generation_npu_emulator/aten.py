"""The aten ops with kernels of their own: making tensors, viewing, copying, casting, and matrix products.

The products are the only aten ops that read FRACTAL_NZ. They compute in float32: the CPU's kernels for 16-bit floats
are a hundred times slower, and less exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from text_generation_npu_emulator.fallback import check_arguments
from text_generation_npu_emulator.launch import Call, PlainKernel, launch
from text_generation_npu_emulator.operators import check_has_dtype
from text_generation_npu_emulator.present import machine_now
from text_generation_npu_emulator.streams import index_of
from text_generation_npu_emulator.tensors import POISON, contiguous_stride, is_on_npu

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_ATEN = torch.ops.aten

# The CPU's kernels for these look at shapes and strides only, and so do for tensors of any device.
_METADATA = (
    "as_strided",
    "view",
    "_reshape_alias",
    "view.dtype",
    "unfold",
    "alias",
    "set_.source_Storage_storage_offset",
    "set_.source_Storage",
    "set_.source_Tensor",
)
# The longest contiguous axis that the cube unit reads at full speed.
_MAX_FAST_AXIS = 65535


def _redispatched(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: op.redispatch(_CPU, *args, **kwargs)


def register_aten(library: torch.library.Library) -> None:
    """Register everything here in a library for `aten`."""
    for name in _METADATA:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(_ATEN, packet), overload or "default")
        library.impl(name, _redispatched(op), "PrivateUse1")
    explicit: tuple[tuple[str, Callable[..., Any]], ...] = (
        ("empty.memory_format", _empty),
        ("empty_strided", _empty_strided),
        ("resize_", _resize),
        ("_copy_from", copy_from),
        ("_copy_from_and_resize", _copy_from_and_resize),
        ("_to_copy", to_copy),
        ("_local_scalar_dense", _local_scalar_dense),
    )
    for name, function in explicit:
        library.impl(name, function, "PrivateUse1")
    for kernel in PRODUCTS:
        library.impl(kernel.name, launched(kernel), "PrivateUse1")


def launched(kernel: PlainKernel) -> Callable[..., Any]:
    """What the dispatcher calls for a kernel."""

    def run(*args: Any, **kwargs: Any) -> Any:
        machine = machine_now()
        check_arguments(machine, kernel.name, args, kwargs)
        return launch(machine, kernel, args, kwargs)

    return run


# Making.


def _empty(
    size: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: object = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: object = None,
) -> Tensor:
    return _empty_strided(size, contiguous_stride(size), dtype, layout, device)


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: object = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    machine = machine_now()
    index = index_of(device)
    dtype = dtype or torch.get_default_dtype()
    check_has_dtype(machine, "empty", dtype)
    made = machine.tensors.empty(size, stride, dtype, index)
    if made.numel():
        machine.tensors.whole_bytes(made).fill_(POISON)
    return made


def _resize(tensor: Tensor, size: Sequence[int], memory_format: object = None) -> Tensor:
    machine = machine_now()
    larger = machine.tensors.empty(size, contiguous_stride(size), tensor.dtype, tensor.device.index)
    kept = min(larger.numel(), tensor.numel())
    if kept:
        flat = machine.tensors.alias(tensor.contiguous()).reshape(-1)
        machine.tensors.alias_to_write(larger).reshape(-1)[:kept] = flat[:kept]
    machine.tensors.replace(tensor, larger)
    return tensor


# Copying.


def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    machine = machine_now()
    if not (is_on_npu(source) and is_on_npu(target)):
        if not non_blocking or machine.capture is None:
            machine.wait("a copy between host and device")
    else:
        machine.require_nothing_waits("a copy on the device")
    launch(machine, _COPY, (source, target), {})
    return target


def _copy_from_and_resize(source: Tensor, target: Tensor) -> Tensor:
    if source.shape != target.shape:
        target.resize_(source.shape)
    return copy_from(source, target)


def to_copy(
    source: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: object = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    machine = machine_now()
    device = device or source.device
    dtype = dtype or source.dtype
    if dtype == torch.float64 and device.type == "npu":
        machine.warn_once("Device do not support double dtype now, dtype cast replace with float.")
        dtype = torch.float32
    keep = memory_format in (None, torch.preserve_format) and _is_dense(source)
    stride = source.stride() if keep else contiguous_stride(source.shape)
    made = torch.empty_strided(source.shape, stride, dtype=dtype, device=device)
    made.copy_(source, non_blocking=non_blocking)
    return made


def _local_scalar_dense(tensor: Tensor) -> Any:
    machine = machine_now()
    machine.wait("reading a value (.item())")
    return machine.tensors.read(tensor).reshape(()).item()


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor's elements lie side by side in some order of its axes."""
    expected = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if step != expected:
            return False
        expected *= size
    return True


def _copy(call: Call, source: Tensor, target: Tensor) -> None:
    to_host = call.is_nz(source) and not is_on_npu(target)
    values = call.machine.tensors.read_part(source) if to_host else call.read(source)
    if is_on_npu(target):
        if call.is_nz(target):
            call.refuse(f"would write into a {tuple(target.shape)} tensor in FRACTAL_NZ")
        check_has_dtype(call.machine, "copy", target.dtype)
        call.write(target).copy_(values)
    else:
        target.copy_(values)


_COPY = PlainKernel("copy_from", _copy, compiles=True)


# Matrix products.


def check_nz_operands(call: Call, *operands: Tensor) -> None:
    """Whether the chip has the kernel that a product takes with these operands in FRACTAL_NZ.

    That each is the whole of what was cast is seen when it is read.
    """
    if not any(call.is_nz(operand) for operand in operands):
        return
    is_float32 = any(operand.dtype == torch.float32 for operand in operands)
    if call.soc.aclnn_only:
        call.require(not is_float32, "FRACTAL_NZ with float32 needs a legacy kernel, which this chip has not")
        call.require(
            not call.is_nz(operands[0]), "FRACTAL_NZ on the left needs a legacy kernel, which this chip has not"
        )


def _count_slow_axes(call: Call, *operands: Tensor) -> None:
    for operand in operands:
        if not call.is_nz(operand) and operand.dim() >= 2:
            inner = operand.shape[-1] if operand.stride(-1) == 1 else operand.shape[-2]
            if inner > _MAX_FAST_AXIS:
                call.machine.counters.slow_matmuls += 1


def _product(call: Call, a: Tensor, b: Tensor, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    call.require(a.dtype == b.dtype, f"expected m1 and m2 to have the same dtype, got {a.dtype} and {b.dtype}")
    call.require(a.dtype.is_floating_point, f"products of {a.dtype} are not supported")
    check_nz_operands(call, a, b)
    _count_slow_axes(call, a, b)
    return function(call.read_float32(a), call.read_float32(b))


def _mm(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return _product(call, a, b, torch.mm).to(a.dtype)


def _bmm(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return _product(call, a, b, torch.bmm).to(a.dtype)


def _addmm(call: Call, bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return (beta * call.read_float32(bias) + alpha * _product(call, a, b, torch.mm)).to(a.dtype)


def _baddbmm(call: Call, bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return (beta * call.read_float32(bias) + alpha * _product(call, a, b, torch.bmm)).to(a.dtype)


# The only aten ops that read FRACTAL_NZ.
PRODUCTS = (
    PlainKernel("mm", _mm, compiles=True),
    PlainKernel("bmm", _bmm, compiles=True),
    PlainKernel("addmm", _addmm, compiles=True),
    PlainKernel("baddbmm", _baddbmm, compiles=True),
)
