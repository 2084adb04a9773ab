"""The same check on the CPU: every instruction set of this machine and plain torch are right, and mistakes show."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.kernels.implementations import native_device
from text_generation_kernels.checks.checking import check_ops
from text_generation_kernels.checks.samples import samples
from text_generation_kernels.checks.shapes import ModelSizes
from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.cpu.ops import CpuOps
from text_generation_kernels.interface import KVCache

SIZES = ModelSizes(
    hidden_size=96,
    num_heads=3,
    num_kv_heads=1,
    head_dim=64,
    intermediate_size=80,
    vocab_size=200,
    block_size=16,
    has_head_norm=True,
    has_qkv_bias=True,
)


@pytest.mark.parametrize("instruction_set", ["amx", "avx512", "avx2", "neon"])
def test_native_kernels_are_right(instruction_set: str) -> None:
    device = native_device(instruction_set, 1, torch.bfloat16)
    found = check_ops(device, samples(SIZES))
    assert len(found) == 12
    assert all(finding.candidates == ("native",) for finding in found)


def test_plain_torch_is_right() -> None:
    found = check_ops(CpuDevice(native=False), samples(SIZES))
    assert all(finding.is_right for finding in found)
    assert max(finding.worst_error for finding in found) < 1e-4


class Careless(CpuOps):
    """As a bug would be: the norm's epsilon is forgotten, and slot -1 is the last slot."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return super().rms_norm(x, weight, 0.0)

    def store_kv(self, k: Tensor, v: Tensor, cache: KVCache, slot_mapping: Tensor) -> None:
        super().store_kv(k, v, cache, slot_mapping % (cache.k.shape[0] * cache.block_size))


def test_small_mistakes_show() -> None:
    device = CpuDevice(native=False)
    device.ops = Careless()
    found = {finding.op: finding for finding in check_ops(device, samples(SIZES))}
    assert {op for op, finding in found.items() if not finding.is_right} == {"rms_norm", "store_kv"}
    (rejection,) = found["rms_norm"].rejections
    assert "size 0.01: off by" in rejection.reason
