"""The stand-in for CANN: it says no to what it cannot do, and the bytes of formats are those that kernels expect."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from text_generation_kernels.npu.kv_cache import FRACTAL_NZ
from text_generation_kernels.npu_probe import load_torch_npu
from text_generation_npu_emulator.formats import pack
from text_generation_npu_emulator.operators import DECLARED
from text_generation_npu_emulator.present import machine_now

TORCH_NPU = load_torch_npu()
HALF = torch.float16


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=HALF, device="npu")


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("npu_fast_gelu", lambda: torch.ops.npu.npu_fast_gelu(ones(4))),
        ("_npu_quant_rms_norm", lambda: torch.ops.atb._npu_quant_rms_norm(*[ones(1, 32)] * 6)),
    ],
    ids=["npu", "atb"],
)
def test_an_op_that_nobody_emulates_is_an_error(name: str, call: Callable[[], object]) -> None:
    assert name not in DECLARED
    with pytest.raises(RuntimeError, match=r"there is no kernel for it|libopapi\.so|CreateOperation failed"):
        call()


def test_a_cast_leaves_the_bytes_in_blocks() -> None:
    TORCH_NPU.npu.config.allow_internal_format = True
    given = torch.randn(2, 33, 40).half()
    nz = TORCH_NPU.npu_format_cast(given.to("npu"), FRACTAL_NZ)
    seen = machine_now().tensors.whole_bytes(nz).view(HALF)
    assert torch.equal(seen, pack(given).reshape(-1))


def test_the_kernels_of_ops_are_the_emulators() -> None:
    calls = machine_now().counters.calls
    before = calls["npu_rms_norm"], calls["add"]
    TORCH_NPU.npu_rms_norm(ones(2, 64), ones(64))
    _ = ones(2) + 1
    assert (calls["npu_rms_norm"], calls["add"]) == (before[0] + 1, before[1] + 1)


def test_an_error_of_a_kernel_is_the_kernels_own() -> None:
    with pytest.raises(RuntimeError, match="expected m1 and m2 to have the same dtype"):
        _ = ones(2, 2) @ ones(2, 2).float()
