"""Norms, rotary embeddings, activations and the sampling filter against plain torch in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.emulator.conftest import MachineMaker
from text_generation_npu_emulator import Machine, Refused

ALL = ("Ascend910PremiumA", "Ascend310P3", "Ascend910B4", "Ascend910_9391", "Ascend950PR")
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5}


def npu(tensor: Tensor) -> Tensor:
    return tensor.to("npu")


def rms_norm64(x: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + epsilon).sqrt() * gamma.double()


@pytest.mark.parametrize("soc_name", ALL)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_rms_norm(make_machine: MachineMaker, soc_name: str, dtype: torch.dtype) -> None:
    make_machine(soc_name)
    x, gamma = torch.randn(5, 3, 64).to(dtype), torch.randn(64).to(dtype)
    y, reciprocal = torch.ops.npu.npu_rms_norm(npu(x), npu(gamma), epsilon=1e-5)
    assert torch.allclose(y.cpu().double(), rms_norm64(x, gamma, 1e-5), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert (y.dtype, reciprocal.dtype, tuple(reciprocal.shape)) == (dtype, torch.float32, (5, 3, 1))


@pytest.mark.parametrize("soc_name", ALL[1:])
def test_add_rms_norm_gives_the_sum_last(make_machine: MachineMaker, soc_name: str) -> None:
    make_machine(soc_name)
    x, residual, gamma = torch.randn(5, 64).half(), torch.randn(5, 64).half(), torch.randn(64).half()
    y, _, total = torch.ops.npu.npu_add_rms_norm(npu(x), npu(residual), npu(gamma), epsilon=1e-5)
    assert torch.allclose(y.cpu().double(), rms_norm64(x.double() + residual.double(), gamma, 1e-5), atol=4e-3)
    assert torch.equal(total.cpu(), x + residual)


@pytest.mark.parametrize("soc_name", ALL[:2])
def test_gamma_must_have_the_dtype_of_x_on_saturating_chips(make_machine: MachineMaker, soc_name: str) -> None:
    make_machine(soc_name)
    with pytest.raises(Refused, match="gamma must have x's dtype"):
        torch.ops.npu.npu_rms_norm(npu(torch.ones(2, 64).half()), npu(torch.ones(64)))


def test_norm_refusals(make_machine: MachineMaker) -> None:
    make_machine("Ascend310P3")
    with pytest.raises(Refused, match="32 bytes"):
        torch.ops.npu.npu_rms_norm(npu(torch.ones(2, 8).half()), npu(torch.ones(8).half()))
    with pytest.raises(Refused, match="empty"):
        torch.ops.npu.npu_add_rms_norm(*[npu(torch.ones(0, 64).half())] * 2, npu(torch.ones(64).half()))


@pytest.mark.parametrize("soc_name", ["Ascend910PremiumA", "Ascend910A", "Ascend910B"])
@pytest.mark.parametrize(
    "call",
    [
        lambda x, g: torch.ops.npu.npu_add_rms_norm(x, x, g),
        lambda x, g: torch.ops.npu.npu_swiglu(x),
        lambda x, g: torch.ops.npu.npu_apply_rotary_pos_emb(x[None], x[None], x[None], x[None], "BSND"),
        lambda x, g: torch.ops.npu.npu_fused_infer_attention_score(x, x, x),
        lambda x, g: torch.ops.npu.npu_prompt_flash_attention(x, x, x),
        lambda x, g: torch.ops.npu.npu_incre_flash_attention(x, x, x),
        lambda x, g: torch.ops.npu.npu_fusion_attention(x, x, x, 1, "TND"),
        lambda x, g: torch.ops.npu.npu_top_k_top_p(x[0]),
        lambda x, g: torch.ops.npu.npu_quant_matmul(x[0], x[0], g),
        lambda x, g: torch.ops.atb._npu_reshape_and_cache(x, x, x, x, g),
        lambda x, g: torch.ops.atb._npu_rotary_embedding(g, x, x, 64, g, True),
        lambda x, g: torch.ops.atb._npu_matmul_add_fp32(x[0], x[0], x[0]),
    ],
)
def test_910a_has_none_of_the_fused_kernels(
    make_machine: MachineMaker, soc_name: str, call: Callable[[Tensor, Tensor], object]
) -> None:
    """Rows "A1 + any ATB op" and "family by name's start": an Ascend910B is an old chip, too."""
    make_machine(soc_name)
    with pytest.raises(Refused, match="no kernel for this chip"):
        call(npu(torch.ones(1, 2, 64).half()), npu(torch.ones(64).half()))


@pytest.mark.parametrize("soc_name", ALL[:2])
def test_bfloat16_is_refused_below_id_220(make_machine: MachineMaker, soc_name: str) -> None:
    """Row "A1/310P + bf16 checkpoint"."""
    make_machine(soc_name)
    for function in (
        lambda: torch.ones(2, dtype=torch.bfloat16).npu(),  # type: ignore[attr-defined]
        lambda: torch.empty(2, dtype=torch.bfloat16, device="npu"),
        lambda: torch.ones(2, device="npu").to(torch.bfloat16),
        lambda: torch.ops.npu.npu_dtype_cast(torch.ones(2, device="npu"), torch.bfloat16),
        lambda: torch.ops.npu.empty_with_format((2, 2), dtype=torch.bfloat16, device="npu:0"),
    ):
        with pytest.raises(Refused, match="bfloat16 is not supported by this chip"):
            function()


def half_rotated64(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.double()
    first, second = wide.chunk(2, -1)
    return wide * cos.double() + torch.cat((-second, first), -1) * sin.double()


def rotary_tables(num_tokens: int, head_dim: int) -> tuple[Tensor, Tensor]:
    angles = torch.outer(torch.arange(num_tokens).float(), 10000.0 ** -(torch.arange(0, head_dim, 2) / head_dim))
    doubled = torch.cat((angles, angles), -1)
    return doubled.cos().half(), doubled.sin().half()


@pytest.mark.parametrize("soc_name", ALL)
def test_rotary_mul(make_machine: MachineMaker, soc_name: str) -> None:
    make_machine(soc_name)
    x = torch.randn(1, 7, 4, 128).half()
    cos, sin = (table[None, :, None] for table in rotary_tables(7, 128))
    out = torch.ops.npu.npu_rotary_mul(npu(x), npu(cos), npu(sin)).cpu()
    assert torch.allclose(out.double(), half_rotated64(x, cos, sin), atol=4e-3)


@pytest.mark.parametrize("soc_name", ALL[:2])
def test_rotary_mul_limits_of_saturating_chips(make_machine: MachineMaker, soc_name: str) -> None:
    make_machine(soc_name)
    cos, sin = (table[None, :, None] for table in rotary_tables(3, 64))
    with pytest.raises(Refused, match="head size must be 128"):
        torch.ops.npu.npu_rotary_mul(npu(torch.ones(1, 3, 2, 64).half()), npu(cos), npu(sin))
    cos, sin = (table[None, :, None] for table in rotary_tables(3, 128))
    with pytest.raises(Refused, match="only rotary_mode 'half'"):
        torch.ops.npu.npu_rotary_mul(npu(torch.ones(1, 3, 2, 128).half()), npu(cos), npu(sin), "interleave")
    with pytest.raises(Refused, match="1000 heads"):
        torch.ops.npu.npu_rotary_mul(npu(torch.ones(1, 3, 1001, 128).half()), npu(cos), npu(sin))


def test_rotary_tables_must_lie_within_one(machine: Machine) -> None:
    x = npu(torch.ones(1, 3, 2, 128).half())
    with pytest.raises(Refused, match="within"):
        torch.ops.npu.npu_rotary_mul(x, x[:, :, :1] * 2, x[:, :, :1])


@pytest.mark.parametrize("soc_name", ALL[1:])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_apply_rotary_pos_emb_writes_in_place(make_machine: MachineMaker, soc_name: str, head_dim: int) -> None:
    make_machine(soc_name)
    q, k = torch.randn(1, 5, 4, head_dim).half(), torch.randn(1, 5, 2, head_dim).half()
    cos, sin = (table[None, :, None] for table in rotary_tables(5, head_dim))
    on_card = npu(q), npu(k)
    torch.ops.npu.npu_apply_rotary_pos_emb(*on_card, npu(cos), npu(sin), layout="BSND")
    for given, x in zip(on_card, (q, k), strict=True):
        assert torch.allclose(given.cpu().double(), half_rotated64(x, cos, sin), atol=4e-3)


def test_apply_rotary_pos_emb_refusals(machine: Machine) -> None:
    apply = torch.ops.npu.npu_apply_rotary_pos_emb
    for head_dim, error in ((80, "64 or 128"), (128, "one head")):
        q = npu(torch.ones(1, 5, 4, head_dim).half())
        table = q[:, :, :1].contiguous() if head_dim == 80 else q
        with pytest.raises(Refused, match=error):
            apply(q, q.clone(), table, table, layout="BSND")
    q = npu(torch.ones(1, 5, 4, 128).half())
    with pytest.raises(Refused, match="one dtype"):
        apply(q, q.clone(), *[q[:, :, :1].contiguous().float()] * 2, layout="BSND")
    with pytest.raises(Refused, match="unknown layout"):
        apply(q, q.clone(), *[q[:, :, :1].contiguous()] * 2, layout="SBH")


def test_default_layout_of_rotary_differs_between_releases(make_machine: MachineMaker) -> None:
    """Row "npu_apply_rotary_pos_emb default layout"."""
    defaults = {}
    for release in ("2.10.0", "2.13.0"):
        make_machine(torch_npu=release)
        arguments = torch.ops.npu.npu_apply_rotary_pos_emb.default._schema.arguments
        defaults[release] = next(a.default_value for a in arguments if a.name == "layout")
    assert defaults == {"2.10.0": "BSH", "2.13.0": "BSND"}


def rotate_by_atb(positions: Tensor, q: Tensor, table: Tensor) -> Tensor:
    given = npu(q)
    torch.ops.atb._npu_rotary_embedding(npu(positions), given, npu(q), 128, npu(table), True)
    return given.cpu()


def test_rotary_embedding_of_atb_keeps_its_first_table(make_machine: MachineMaker) -> None:
    """Row "_npu_rotary_embedding with a second table": refused, and with a silent chip the first table's result."""
    q, positions = torch.randn(3, 256).half(), torch.arange(3)
    angles = torch.outer(torch.arange(8).float(), torch.ones(64))
    table = torch.cat((angles.cos(), angles.sin()), -1).half()
    other = torch.cat((angles.sin(), angles.cos()), -1).half()
    make_machine()
    first = rotate_by_atb(positions, q, table)
    cos, sin = (half.repeat(1, 2)[:3, None] for half in table.chunk(2, -1))
    assert torch.allclose(first.double().view(3, 2, 128), half_rotated64(q.view(3, 2, 128), cos, sin), atol=4e-3)
    with pytest.raises(Refused, match="keeps the tables of its first call"):
        rotate_by_atb(positions, q, other)
    make_machine(silent=True)
    assert torch.equal(rotate_by_atb(positions, q, table), rotate_by_atb(positions, q, other))


@pytest.mark.parametrize("soc_name", ALL[1:])
def test_swiglu(make_machine: MachineMaker, soc_name: str) -> None:
    make_machine(soc_name)
    x = torch.randn(5, 64).half()
    gate, up = x.double().chunk(2, -1)
    out = torch.ops.npu.npu_swiglu(npu(x)).cpu()
    assert torch.allclose(out.double(), torch.nn.functional.silu(gate) * up, atol=4e-3)


def test_swiglu_refusals(make_machine: MachineMaker) -> None:
    make_machine()
    with pytest.raises(Refused, match="must be contiguous"):
        torch.ops.npu.npu_swiglu(npu(torch.ones(64, 4).half()).t())
    with pytest.raises(Refused, match="empty"):
        torch.ops.npu.npu_swiglu(npu(torch.ones(0, 4).half()))
    make_machine("Ascend310P3")
    with pytest.raises(Refused, match="multiple of 32"):
        torch.ops.npu.npu_swiglu(npu(torch.ones(2, 48).half()))


def test_silu_exists_where_legacy_kernels_do(make_machine: MachineMaker) -> None:
    x = torch.randn(5, 64).half()
    for soc_name in ALL[:4]:
        make_machine(soc_name)
        out = torch.ops.npu.npu_silu(npu(x)).cpu()
        assert torch.allclose(out.double(), torch.nn.functional.silu(x.double()), atol=2e-3)
    make_machine("Ascend950PR")
    with pytest.raises(Refused, match="no kernel"):
        torch.ops.npu.npu_silu(npu(x))


def test_scaled_masked_softmax(make_machine: MachineMaker) -> None:
    make_machine("Ascend910PremiumA")
    x, mask = torch.randn(1, 2, 32, 64).half(), torch.rand(1, 1, 32, 64) > 0.5
    out = torch.ops.npu.npu_scaled_masked_softmax(npu(x), npu(mask), 0.5).cpu()
    expected = (x.double() * 0.5).masked_fill(mask, float("-inf")).softmax(-1)
    assert torch.allclose(out.double(), expected, atol=1e-3)
    for shape in ((1, 2, 16, 64), (1, 2, 32, 40), (1, 1, 32, 4128)):
        with pytest.raises(Refused, match="by 32"):
            torch.ops.npu.npu_scaled_masked_softmax(npu(torch.ones(shape).half()), npu(torch.ones(shape).bool()))


def test_top_k_top_p(machine: Machine) -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 50)
    k, p = torch.tensor([1, 5, 50, 20], dtype=torch.int32), torch.tensor([1.0, 1.0, 0.5, 0.7])
    out = torch.ops.npu.npu_top_k_top_p(npu(logits), npu(p), npu(k)).cpu()
    for row in range(4):
        order = logits[row].argsort(descending=True)[: int(k[row])]
        probabilities = logits[row][order].softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        kept = set(order[before < p[row]].tolist())
        assert set(out[row].isfinite().nonzero().flatten().tolist()) == kept
    with pytest.raises(Refused, match=r"within 1\.\.50"):
        torch.ops.npu.npu_top_k_top_p(npu(logits), npu(p), npu(k * 0))
    with pytest.raises(Refused, match="int32"):
        torch.ops.npu.npu_top_k_top_p(npu(logits), npu(p), npu(k.long()))
