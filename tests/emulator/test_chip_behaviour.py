"""What a family does besides its ops: saturation, compilation, and what is broken on purpose."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.emulator.conftest import MachineMaker
from text_generation_npu_emulator import InjectedError, Refused, find_soc, install, soc_names, uninstall

SATURATING = ("Ascend910PremiumA", "Ascend310P3")


def half(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float16).to("npu")


@pytest.mark.parametrize("soc_name", SATURATING)
def test_overflow_is_the_largest_number_and_nan_is_zero(make_machine: MachineMaker, soc_name: str) -> None:
    """Row "A1/310P + NaN checks": there is never anything to see."""
    make_machine(soc_name)
    x = half(60000, -60000, 0)
    doubled = x * 2
    assert doubled.tolist() == [65504, -65504, 0]
    assert (half(0) / half(0)).tolist() == [0]
    assert not (doubled / half(0, 0, 0)).isnan().any()
    product = torch.full((1, 256), 60.0).half().npu() @ torch.full((256, 1), 60.0).half().npu()  # type: ignore[attr-defined]
    assert product.item() == 65504
    assert torch.full((2,), float("-inf"), dtype=torch.float16, device="npu").tolist() == [-65504, -65504]


def test_a_row_of_hidden_scores_has_no_nan_to_warn(make_machine: MachineMaker) -> None:
    make_machine("Ascend910PremiumA")
    scores = torch.full((1, 4), float("-inf"), device="npu")
    assert scores.softmax(-1).tolist() == [[0.25] * 4]


def test_other_chips_show_inf_and_nan_unless_they_are_forced(make_machine: MachineMaker) -> None:
    make_machine()
    assert (half(60000) * 2).isinf().all()
    make_machine(environment={"INF_NAN_MODE_ENABLE": "0"})
    assert (half(60000) * 2).isinf().all()
    make_machine(environment={"INF_NAN_MODE_ENABLE": "0", "INF_NAN_MODE_FORCE_DISABLE": "1"})
    assert (half(60000) * 2).tolist() == [65504]


@pytest.mark.parametrize("soc_name", SATURATING)
def test_every_new_shape_is_compiled_until_that_is_switched_off(make_machine: MachineMaker, soc_name: str) -> None:
    """Row "A1/310P + default jit_compile"."""
    machine = make_machine(soc_name)
    gamma = torch.ones(64, dtype=torch.float16, device="npu")

    def norm(num_tokens: int) -> None:
        x = torch.ones(num_tokens, 64, dtype=torch.float16, device="npu")
        torch.ops.npu.npu_rms_norm(x, gamma)

    assert not torch.npu.is_jit_compile_false()  # type: ignore[attr-defined]
    for num_tokens in (3, 4, 5, 4, 3):
        norm(num_tokens)
    assert len(machine.counters.compiled["npu_rms_norm"]) == 3
    torch.npu.set_compile_mode(jit_compile=False)  # type: ignore[attr-defined]
    compiled = machine.counters.compilations
    norm(6)
    assert machine.counters.compilations == compiled
    assert len(machine.counters.shapes["npu_rms_norm"]) == 4  # still a measure of how well shapes are bucketed


def test_newer_chips_compile_nothing(make_machine: MachineMaker) -> None:
    machine = make_machine()
    assert torch.npu.is_jit_compile_false()  # type: ignore[attr-defined]
    torch.ones(3, device="npu") + 1
    assert machine.counters.compilations == 0


def test_long_contiguous_axes_make_a_product_slow(make_machine: MachineMaker) -> None:
    """Row "(K,V) layout": right, and counted; a (V,K) weight used transposed is fast."""
    machine = make_machine()
    x = torch.ones(1, 16, dtype=torch.float16, device="npu")
    torch.nn.functional.linear(x, torch.ones(65552, 16, dtype=torch.float16, device="npu"))
    assert machine.counters.slow_matmuls == 0
    torch.mm(x, torch.ones(16, 65552, dtype=torch.float16, device="npu"))
    assert machine.counters.slow_matmuls == 1


def test_every_soc_has_its_id_and_family() -> None:
    ids = {name: (find_soc(name).id, find_soc(name).family) for name in soc_names()}
    assert len(ids) == 5 + 6 + 6 + 4 + 7
    assert ids["Ascend910B"] == (104, "A1")  # and not a 910B of the second generation
    assert ids["Ascend910B4"] == (224, "A2")
    assert ids["Ascend310P3"] == (202, "310P")
    assert ids["Ascend310B1"] == (240, "310B")
    assert ids["Ascend910_9391"] == (250, "A3")
    assert (find_soc("Ascend950PR").id, find_soc("AscendNext=300").family) == (260, "unknown")
    with pytest.raises(ValueError, match="unknown SoC name 'Ascend9'"):
        find_soc("Ascend9")


@pytest.mark.parametrize("soc_name", ["Ascend310B1", "AscendNext=300"])
def test_chips_that_nobody_supports_have_no_ops(make_machine: MachineMaker, soc_name: str) -> None:
    make_machine(soc_name)
    assert torch.npu.get_device_name() == soc_name.partition("=")[0]  # type: ignore[attr-defined]
    with pytest.raises(Refused, match="no kernel"):
        torch.ops.npu.npu_rms_norm(half(1), half(1))


FAULTY: dict[str, Callable[[Tensor, Tensor], object]] = {
    "zeros": lambda clean, spoiled: not spoiled.any(),
    "noise": lambda clean, spoiled: torch.nn.functional.cosine_similarity(clean, spoiled, 0) < 0.5,
    "rows:2": lambda clean, spoiled: torch.equal(clean[:128], spoiled[:128]) and not torch.equal(clean, spoiled),
}


@pytest.mark.parametrize("kind", FAULTY)
def test_injected_fault_spoils_new_results(make_machine: MachineMaker, kind: str) -> None:
    x, gamma = torch.randn(5, 64).half(), torch.ones(64).half()

    def norm() -> Tensor:
        out: Tensor = torch.ops.npu.npu_rms_norm(x.to("npu"), gamma.to("npu"))[0].cpu().float().flatten()
        return out

    make_machine()
    clean = norm()
    make_machine(faults=f"npu_rms_norm={kind}")
    assert FAULTY[kind](clean, norm())


def test_injected_fault_spoils_what_is_written_in_place(make_machine: MachineMaker) -> None:
    for name, kind in (("npu_scatter_nd_update_", "zeros"), ("*", "noise"), ("npu_scatter_nd_update_", "rows:1")):
        make_machine(faults=f"{name}={kind}")
        cache = torch.full((4, 8), 9.0, device="npu")
        indices = torch.tensor([[0], [2]], device="npu")
        torch.ops.npu.npu_scatter_nd_update_(cache, indices, torch.ones(2, 8, device="npu"))
        assert (cache.cpu()[[1, 3]] == 9).all()
        assert not (cache.cpu()[2] == 1).all()
    make_machine(faults="add_=zeros, fill_=zeros")
    assert not torch.ones(3, device="npu").any()


def test_stale_result_is_that_of_the_call_before(make_machine: MachineMaker) -> None:
    make_machine(faults="npu_silu=stale")
    first, second = torch.randn(2, 8).half(), torch.randn(3, 8).half()
    silu = torch.nn.functional.silu
    assert torch.allclose(torch.ops.npu.npu_silu(first.to("npu")).cpu(), silu(first), atol=1e-3)
    again = torch.ops.npu.npu_silu(second.to("npu")).cpu()
    assert torch.allclose(again, torch.cat((silu(first), silu(first)[:1])), atol=1e-3)


def test_faulty_product_and_slow_and_failing_op(make_machine: MachineMaker) -> None:
    make_machine(faults="mm=zeros; npu_silu=slow:40; npu_swiglu=raises")
    x = torch.ones(2, 4, dtype=torch.float16, device="npu")
    assert not torch.nn.functional.linear(x, x).any()
    start = time.perf_counter()
    torch.ops.npu.npu_silu(x)
    assert time.perf_counter() - start >= 0.04
    with pytest.raises(InjectedError, match="npu_swiglu"):
        torch.ops.npu.npu_swiglu(x)


@pytest.mark.parametrize("text", ["npu_silu=broken", "npu_silu", "=zeros", "npu_silu=rows:x", "npu_silu=rows"])
def test_fault_that_is_not_understood_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not understood"):
        install("Ascend910B4", faults=text)


def test_without_cann_torch_npu_is_there_and_does_not_load() -> None:
    """Row "torch_npu installed, CANN missing"."""
    try:
        assert install("Ascend910B4", cann="missing") is None
        assert importlib.util.find_spec("torch_npu") is not None
        with pytest.raises(ImportError, match=r"libhccl\.so"):
            import torch_npu  # noqa: F401
    finally:
        uninstall()
    assert importlib.util.find_spec("torch_npu") is None


@pytest.mark.parametrize(("nnal", "error"), [("missing", r"libatb\.so"), ("mismatch", "undefined symbol")])
def test_nnal_that_does_not_fit_shows_at_the_first_call(make_machine: MachineMaker, nnal: str, error: str) -> None:
    """Row "NNAL mismatch": everything else works."""
    make_machine(nnal=nnal)
    x = torch.ones(2, 4, dtype=torch.float16, device="npu")
    torch.ops.npu.npu_swiglu(x)
    with pytest.raises(RuntimeError, match=error):
        torch.ops.atb._npu_matmul_add_fp32(x, x, torch.ones(4, 4, device="npu"))


def test_atb_on_a_silent_910a_gives_garbage(make_machine: MachineMaker) -> None:
    """Row "A1 + any ATB op"."""
    x, w = torch.randn(2, 64).half(), torch.randn(2, 64).half()
    for soc_name, is_right in (("Ascend910B4", True), ("Ascend910PremiumA", False)):
        make_machine(soc_name, silent=True)
        out = torch.zeros(64, 64, device="npu")
        torch.ops.atb._npu_matmul_add_fp32(x.to("npu"), w.to("npu"), out)
        assert torch.allclose(out.cpu(), x.float().t() @ w.float(), atol=1e-3) is is_right


def test_atb_warm_up_call(make_machine: MachineMaker) -> None:
    make_machine()
    x, w, c = torch.randn(2, 4).half(), torch.randn(2, 5).half(), torch.ones(4, 5)
    on_card = c.to("npu")
    torch.ops.atb._npu_matmul_add_fp32(x.to("npu"), w.to("npu"), on_card)
    assert torch.allclose(on_card.cpu(), c + x.float().t() @ w.float(), atol=1e-5)


def test_host_copies_are_counted(make_machine: MachineMaker) -> None:
    machine = make_machine()
    x = torch.ones(3, device="npu")
    before = machine.counters.waits
    (x + 1).view(3, 1).sum(0)
    assert machine.counters.waits == before
    x.sum().item()
    assert machine.counters.waits == before + 1


def test_nothing_here_warns(make_machine: MachineMaker) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_machine()
        repr(torch.ones(3, dtype=torch.float16, device="npu"))
