"""The backends that every op test runs on. A new backend is one more line in IMPLEMENTATIONS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.interface import Device, Ops
from torch import Tensor


@dataclass(frozen=True)
class Implementation:
    """How to make a device, and how near its results come to the reference's."""

    name: str
    make: Callable[[], Device]
    tolerance: float  # absolute and relative, for inputs of size 1


IMPLEMENTATIONS = (Implementation("cpu", CpuDevice, tolerance=1e-5),)


class Backend:
    """A device under test, and the way of tensors to it and back."""

    def __init__(self, implementation: Implementation) -> None:
        self.device = implementation.make()
        self.tolerance = implementation.tolerance

    @property
    def ops(self) -> Ops:
        return self.device.ops

    def put(self, x: Tensor) -> Tensor:
        """A copy on the device, in the activation dtype if x is a float tensor; strides are kept on the CPU."""
        dtype = self.ops.activation_dtype if x.is_floating_point() else x.dtype
        return x.to(self.device.torch_device, dtype)

    def rounded(self, x: Tensor) -> Tensor:
        """What the reference must be given to see the same numbers: float32 on the CPU."""
        return x.to(self.ops.activation_dtype).float()

    def assert_close(self, actual: Tensor, expected: Tensor) -> None:
        assert actual.dtype == self.ops.activation_dtype
        assert actual.device.type == self.device.torch_device.type
        torch.testing.assert_close(actual.float().cpu(), expected, atol=self.tolerance, rtol=self.tolerance)
