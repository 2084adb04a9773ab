"""The backends that every op test runs on. A new backend is one more line in IMPLEMENTATIONS.

Native kernels are run on every instruction set that the library and this processor share, with one thread and with two.
Without a library they are skipped, and say so. In a process with an emulated NPU, that NPU is the one backend:
tests/kernels/npu starts such processes.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from tests.kernels.paged_steps import Heads
from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.interface import Device, Ops
from text_generation_kernels.native.library import (
    INSTRUCTION_SET_VARIABLE,
    Library,
    LibraryUnavailable,
    load_library,
    wanted_instruction_set,
)
from text_generation_kernels.native.ops import NativeCpuOps
from text_generation_kernels.npu.device import NpuDevice, NpuOptions
from text_generation_kernels.npu.soc import EMULATOR_VARIABLE
from text_generation_kernels.npu_probe import load_torch_npu


@dataclass(frozen=True)
class Implementation:
    """How to make a device, and how near its results come to the reference's."""

    name: str
    make: Callable[[], Device]
    tolerance: float  # absolute and relative, for inputs of size 1
    kv_dtype: torch.dtype = torch.float32  # what keys and values are rounded to
    is_exact_in_any_batch: bool = False  # whether a row is the same to the last bit whatever stands beside it


def library_or_skip() -> Library:
    if wanted_instruction_set() == "none":
        pytest.skip(f"the native CPU kernels are turned off by {INSTRUCTION_SET_VARIABLE}")
    try:
        return load_library()
    except LibraryUnavailable as error:
        pytest.skip(str(error))


def native_device(instruction_set: str, num_threads: int, kv_dtype: torch.dtype) -> CpuDevice:
    library = library_or_skip()
    if instruction_set not in library.instruction_sets:
        pytest.skip(f"this processor or this library has no {instruction_set}")
    device = CpuDevice(native=True)
    device.ops = NativeCpuOps(library, num_threads, instruction_set, kv_dtype)
    return device


def native(instruction_set: str, num_threads: int, kv_dtype: torch.dtype) -> Implementation:
    def make() -> Device:
        return native_device(instruction_set, num_threads, kv_dtype)

    name = f"{instruction_set}-{num_threads}-{str(kv_dtype).removeprefix('torch.')}"
    # With keys and values in bfloat16, AMX reads rows to 2^-17.
    tolerance = 5e-5 if (instruction_set, kv_dtype) == ("amx", torch.bfloat16) else 1e-5
    return Implementation(name, make, tolerance, kv_dtype, is_exact_in_any_batch=True)


_NATIVE_X86 = (
    native("avx2", 1, torch.float32),
    native("avx2", 2, torch.bfloat16),
    native("avx512", 1, torch.bfloat16),
    native("avx512", 2, torch.float32),
    native("amx", 1, torch.float32),
    native("amx", 2, torch.bfloat16),
)
_NATIVE_ARM = (native("neon", 1, torch.float32), native("neon", 2, torch.bfloat16))


def npu_device() -> Device:
    """The emulated NPU, with plain torch ops if TEST_NPU_PLAIN says so."""
    return NpuDevice(load_torch_npu(), 0, NpuOptions(is_plain=bool(os.environ.get("TEST_NPU_PLAIN"))))


# Results are rounded to float16, and so are probabilities and the cosines of angles on the way there.
_NPU = Implementation("npu", npu_device, 4e-3, torch.float16)

_CPU = (
    Implementation("torch", lambda: CpuDevice(native=False), tolerance=1e-5),
    *(_NATIVE_ARM if platform.machine() == "aarch64" else _NATIVE_X86),
)

IMPLEMENTATIONS = (_NPU,) if os.environ.get(EMULATOR_VARIABLE) else _CPU


class Backend:
    """A device under test, and the way of tensors to it and back."""

    def __init__(self, implementation: Implementation) -> None:
        self.device = implementation.make()
        self.tolerance = implementation.tolerance
        self.kv_dtype = implementation.kv_dtype
        self.is_exact_in_any_batch = implementation.is_exact_in_any_batch
        self.shows_nan = not (isinstance(self.device, NpuDevice) and self.device.family.saturates)

    @property
    def ops(self) -> Ops:
        return self.device.ops

    def skip_without(self, dtype: torch.dtype) -> None:
        """Skip a test that puts numbers of a type on the device which that may lack."""
        if dtype == torch.bfloat16 and not self.device.has_bfloat16:
            pytest.skip(f"{self.device.name} has no bfloat16")

    def put(self, x: Tensor) -> Tensor:
        """A copy on the device, in the activation dtype if x is a float tensor; strides are kept on the CPU."""
        dtype = self.ops.activation_dtype if x.is_floating_point() else x.dtype
        return x.to(self.device.torch_device, dtype)

    def rounded(self, x: Tensor) -> Tensor:
        """What the reference must be given to see the same numbers: float32 on the CPU."""
        return x.to(self.ops.activation_dtype).float()

    def rounded_kv(self, x: Tensor) -> Tensor:
        """The same for keys and values, which lose digits in the cache."""
        return x.to(self.kv_dtype).float()

    def heads(self, heads: Heads) -> Heads:
        """Heads whose keys and values the cache holds as they are."""
        return replace(heads, kv_dtype=self.kv_dtype)

    def assert_close(self, actual: Tensor, expected: Tensor) -> None:
        assert actual.dtype == self.ops.activation_dtype
        assert actual.device.type == self.device.torch_device.type
        torch.testing.assert_close(actual.float().cpu(), expected, atol=self.tolerance, rtol=self.tolerance)

    def assert_same_row(self, actual: Tensor, expected: Tensor) -> None:
        """Equal to the last bit where the backend promises it, else close."""
        if self.is_exact_in_any_batch:
            assert torch.equal(actual, expected)
        else:
            torch.testing.assert_close(actual, expected, atol=self.tolerance, rtol=self.tolerance)
