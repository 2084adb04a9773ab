"""Products with quantized weights against products with the weights that they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.emulator.conftest import MachineMaker
from text_generation_npu_emulator import Refused

FLOAT16, BFLOAT16 = 5, 15


def weights(k: int, n: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randint(-127, 128, (k, n), dtype=torch.int8), torch.rand(n) * 0.01 + 0.001


@pytest.mark.parametrize("soc_name", ["Ascend310P3", "Ascend910B4"])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_weight_only_int8(make_machine: MachineMaker, soc_name: str, is_transposed: bool) -> None:
    make_machine(soc_name)
    w, scale = weights(64, 48)
    x, scale = torch.randn(5, 64).half(), scale.half()
    on_card = w.t().contiguous().to("npu").t() if is_transposed else w.to("npu")
    out = torch.ops.npu.npu_weight_quant_batchmatmul(x.to("npu"), on_card, scale.to("npu"))
    expected = x.double() @ (w.double() * scale.double())
    assert torch.allclose(out.cpu().double(), expected, rtol=1e-2, atol=1e-2)


def test_weight_only_groups_and_int4(make_machine: MachineMaker) -> None:
    make_machine()
    torch.manual_seed(0)
    w = torch.randint(-8, 8, (64, 48), dtype=torch.int32)
    packed = torch.ops.npu.npu_convert_weight_to_int4pack(w.to("npu"))
    assert (tuple(packed.shape), packed.dtype) == ((64, 6), torch.int32)
    x, scale = torch.randn(5, 64).half(), (torch.rand(2, 48) * 0.1).half()
    out = torch.ops.npu.npu_weight_quant_batchmatmul(x.to("npu"), packed, scale.to("npu"), antiquant_group_size=32)
    expected = x.double() @ (w.double() * scale.double().repeat_interleave(32, 0))
    assert torch.allclose(out.cpu().double(), expected, rtol=1e-2, atol=1e-2)
    with pytest.raises(Refused, match="by 32"):
        torch.ops.npu.npu_weight_quant_batchmatmul(x.to("npu"), packed, scale.to("npu"), antiquant_group_size=16)
    with pytest.raises(Refused, match=r"-8\.\.7"):
        torch.ops.npu.npu_convert_weight_to_int4pack(w.to("npu") + 8)


def test_weight_only_refusals(make_machine: MachineMaker) -> None:
    make_machine("Ascend310P3")
    w, scale = weights(64, 64)
    x = torch.randn(5, 64).half().to("npu")
    nz = torch.ops.npu.npu_format_cast(w.to("npu"), 29)
    with pytest.raises(Refused, match="only supported in graph mode"):
        torch.ops.npu.npu_weight_quant_batchmatmul(x, nz, scale.half().to("npu"))
    with pytest.raises(Refused, match="int4 weights"):
        torch.ops.npu.npu_weight_quant_batchmatmul(x, w.int().to("npu"), scale.half().to("npu"))
    with pytest.raises(Refused, match="antiquant_scale must be"):
        torch.ops.npu.npu_weight_quant_batchmatmul(x, w.to("npu"), scale.to("npu"))


def test_dynamic_int8(make_machine: MachineMaker) -> None:
    make_machine()
    w, scale = weights(64, 48)
    x = torch.randn(5, 64).half()
    rows, row_scale = torch.ops.npu.npu_dynamic_quant(x.to("npu"))
    assert torch.allclose(rows.cpu().float() * row_scale.cpu()[:, None], x.float(), atol=0.02)
    product = torch.ops.npu.npu_quant_matmul
    out = product(rows, w.to("npu"), scale.to("npu"), pertoken_scale=row_scale, output_dtype=FLOAT16)
    expected = (rows.cpu().double() @ w.double()) * scale.double() * row_scale.cpu().double()[:, None]
    assert torch.allclose(out.cpu().double(), expected, rtol=1e-2, atol=1e-2)
    assert product(rows, w.to("npu"), scale.to("npu"), output_dtype=torch.bfloat16).dtype == torch.bfloat16


def test_result_is_int8_unless_it_is_asked_for(make_machine: MachineMaker) -> None:
    """Row "npu_quant_matmul without output_dtype"."""
    make_machine()
    w, scale = weights(64, 48)
    out = torch.ops.npu.npu_quant_matmul(torch.ones(2, 64, dtype=torch.int8).to("npu"), w.to("npu"), scale.to("npu"))
    assert out.dtype == torch.int8


def test_axes_beyond_65535_are_refused(make_machine: MachineMaker) -> None:
    """Row "V > 65535 in quantised matmul"."""
    make_machine()
    x, w = torch.ones(1, 16, dtype=torch.int8).to("npu"), torch.ones(16, 65536, dtype=torch.int8).to("npu")
    with pytest.raises(Refused, match="65535"):
        torch.ops.npu.npu_quant_matmul(x, w, torch.ones(65536).to("npu"), output_dtype=FLOAT16)
    with pytest.raises(Refused, match="65535"):
        torch.ops.npu.npu_weight_quant_batchmatmul(x.half(), w, torch.ones(65536).half().to("npu"))


def test_310p_has_no_scale_per_token(make_machine: MachineMaker) -> None:
    make_machine("Ascend310P3")
    w, scale = weights(64, 64)
    x = torch.ones(2, 64, dtype=torch.int8).to("npu")
    words = torch.ops.npu.npu_trans_quant_param(scale.to("npu"))
    assert words.dtype == torch.int64
    nz = torch.ops.npu.npu_format_cast(w.t().contiguous().to("npu"), 29)
    out = torch.ops.npu.npu_quant_matmul(x, nz.t(), words, output_dtype=FLOAT16)
    assert torch.allclose(out.cpu().double(), w.double().sum(0) * scale.double(), rtol=1e-2, atol=1e-2)
    with pytest.raises(Refused, match="pertoken_scale is not supported"):
        torch.ops.npu.npu_quant_matmul(x, nz.t(), words, pertoken_scale=torch.ones(2).to("npu"), output_dtype=FLOAT16)
    with pytest.raises(Refused, match="int8 or float16"):
        torch.ops.npu.npu_quant_matmul(x, nz.t(), words, output_dtype=BFLOAT16)


@pytest.mark.parametrize("soc_name", ["Ascend910PremiumA", "Ascend310P3", "Ascend910B4"])
def test_npu_linear(make_machine: MachineMaker, soc_name: str) -> None:
    make_machine(soc_name)
    torch.npu.config.allow_internal_format = True  # type: ignore[attr-defined]
    x, w, b = torch.randn(5, 64).half(), torch.randn(48, 64).half(), torch.randn(48).half()
    nz = torch.ops.npu.npu_format_cast(w.to("npu"), 29)
    for weight in (w.to("npu"), nz):
        out = torch.ops.npu.npu_linear(x.to("npu"), weight, b.to("npu"))
        expected = x.double() @ w.double().t() + b.double()
        assert torch.allclose(out.cpu().double(), expected, rtol=2e-3, atol=2e-2)
