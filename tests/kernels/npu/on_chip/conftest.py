from __future__ import annotations

import pytest

from text_generation_kernels.npu.device import NpuDevice
from text_generation_kernels.npu_probe import load_torch_npu


@pytest.fixture
def device() -> NpuDevice:
    """The process's emulated card, with every candidate in its own place."""
    return NpuDevice(load_torch_npu(), 0)
