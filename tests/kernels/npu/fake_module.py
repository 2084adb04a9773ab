"""As much of the module torch_npu as making ops takes; nothing of it computes."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from tests.kernels.npu.releases import lookup_in
from text_generation_kernels.npu.ops import NpuOps
from text_generation_kernels.npu.soc import FAMILIES


def described_ops(family: str, release: str = "2.13.0", dtype: torch.dtype = torch.float16) -> NpuOps:
    """The ops of a family with a release's schemas: candidates can be asked for, fused ones not run."""
    torch_npu = SimpleNamespace(npu=SimpleNamespace(config=SimpleNamespace(allow_internal_format=False)))
    chip = next(f for f in FAMILIES if f.name == family)
    return NpuOps(torch_npu, chip, torch.device("cpu"), dtype, lookup=lookup_in(release))
