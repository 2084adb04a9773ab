"""Ops that go wrong on an emulated chip of each family: every op that a model uses there, with every fault there is.

What a clean check launches is the list of ops, so a candidate that is added later is tested by itself.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from itertools import product

import pytest

from text_generation_kernels.checks.checking import check_ops
from text_generation_kernels.checks.findings import OpFinding
from text_generation_kernels.checks.samples import Sample, samples
from text_generation_kernels.checks.shapes import ModelSizes
from text_generation_kernels.npu.device import NpuDevice, NpuOptions
from text_generation_kernels.npu_probe import load_torch_npu
from text_generation_npu_emulator import Machine, emulated_npu

CHIPS = ("Ascend910PremiumA", "Ascend310P3", "Ascend910B4", "Ascend910_9391", "Ascend950")
FAULTS = ("noise", "zeros", "stale", "rows:16", "raises", "slow:80")
SLOW_S = 0.04
# Heads of 128, which every fused op takes.
SIZES = ModelSizes(
    hidden_size=128,
    num_heads=2,
    num_kv_heads=1,
    head_dim=128,
    intermediate_size=64,
    vocab_size=101,
    block_size=128,
)

SAMPLES = tuple(samples(SIZES))


def of(ops: Container[str]) -> list[Sample]:
    return [sample for sample in SAMPLES if sample.op in ops]


@contextmanager
def device_on(chip: str, faults: str = "") -> Iterator[tuple[NpuDevice, Machine]]:
    with emulated_npu(chip, faults=faults) as machine:
        # Where weights are in NZ by default, that is asked for: else each is timed, which slow products make long.
        layout = "nz" if machine.soc.family in ("A1", "310P") else "auto"
        yield NpuDevice(load_torch_npu(), 0, NpuOptions(weight_layout=layout)), machine


def launched_on(chip: str) -> dict[str, dict[str, str]]:
    """What is launched where all is well, of npu:: and atb:: and the product of matrices: for each of them the ops
    whose results it makes, with their candidates."""
    with device_on(chip) as (device, machine):
        for finding in check_ops(device, SAMPLES):
            assert finding.rejections == ()
            assert finding.is_right
        launched: dict[str, dict[str, str]] = {}
        for op in ("rms_norm", "store_kv", *device.ops.choices):
            machine.counters.clear()
            (finding,) = check_ops(device, of({op}))
            for name in machine.counters.calls:
                is_own = name.startswith(("npu_", "_npu_")) or (op, name) == ("linear", "mm")
                # Who casts a tensor looks at what comes back; attention writes before it reads; a norm serves sums too.
                is_helper = name == "npu_format_cast" or {"rms_norm", "store_kv"} & launched.get(name, {}).keys()
                # A step of several kinds of rows shows in each of them.
                is_others = op.startswith("attention") and finding.candidates[-1].split()[0] != name
                if is_own and not is_helper and not is_others:
                    launched.setdefault(name, {})[op] = finding.candidates[-1]
    return launched


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
def test_every_fault_of_every_op_in_use_is_found_and_passed_by(chip: str, caplog: pytest.LogCaptureFixture) -> None:
    launched = launched_on(chip)
    assert len(launched) >= 5
    for (name, candidates), fault in product(launched.items(), FAULTS):
        caplog.clear()
        with device_on(chip, f"{name}={fault}") as (device, machine):
            out = {(op, status.name): status.refused for op in candidates for status in device.ops.candidates(op)}
            found = {finding.op: finding for finding in check_ops(device, of(candidates), SLOW_S)}
            injected = machine.fault_of(name)
            assert injected is not None, name
            if fault == "slow:80" and chip == "Ascend310P3" and "store_kv" in candidates:
                assert "store_kv by _npu_reshape_and_cache is slow" in caplog.text  # but nothing else writes NZ
            elif injected.num_spoiled or not fault.startswith("rows"):
                refused = {op: out[op, candidate] or "" for op, candidate in candidates.items()}
                if not any("ATB cannot be called" in reason for reason in refused.values()):  # seen and said before
                    assert_passed_by(found, candidates, fault)
                    how = "slow" if "slow" in fault else "wrong"
                    assert any(
                        f"self-check: {op} by {candidate} is {how} on {chip}" in caplog.text
                        for op, candidate in candidates.items()
                    )
            if fault == "noise":  # once and for all: what is used now has no fault
                for finding in check_ops(device, of(candidates), SLOW_S):
                    assert finding.rejections == ()
                    assert finding.candidates == found[finding.op].candidates


def assert_passed_by(found: dict[str, OpFinding], candidates: dict[str, str], fault: str) -> None:
    for op, candidate in candidates.items():
        assert found[op].is_right
        assert candidate not in found[op].candidates
    # With a decode that is out, a chunk's may be out for its cache's layout, which is no fault of its own.
    reasons = [rejection.reason for op in candidates for rejection in found[op].rejections]
    expected = {"raises": "(injected)", "slow:80": " ms where "}.get(fault)
    assert reasons
    for reason in reasons:
        assert expected in reason if expected else ("off by" in reason or "values differ" in reason)


@pytest.mark.parametrize("chip", CHIPS)
def test_without_a_right_candidate_an_op_is_said_to_be_wrong(chip: str) -> None:
    everywhere = (
        "*=noise, mm=noise, bmm=noise, addmm=noise, matmul=noise, linear=noise, index=zeros, index_select=zeros"
    )
    with device_on(chip, everywhere) as (device, _):
        findings = {finding.op: finding for finding in check_ops(device, SAMPLES)}
    refused = {op: [rejection.candidate for rejection in finding.rejections] for op, finding in findings.items()}
    assert not any(findings[op].is_right for op in ("linear", "attention_prefill", "attention_chunk"))
    assert not findings["attention_decode"].is_right
    assert "composed" in refused["linear"]
    assert "composed" in refused["attention_decode"]


def test_a_310p_without_a_right_decode_in_nz_is_checked_again_in_nd() -> None:
    with device_on("Ascend310P3", "_npu_paged_attention=noise") as (device, _):
        findings = {finding.op: finding for finding in check_ops(device, SAMPLES)}
        assert findings["attention_decode"].candidates == ("npu_incre_flash_attention",)
        assert findings["store_kv"].candidates == ("npu_scatter_nd_update_",)  # what writes ND there
        cache = device.ops.new_kv_cache(1, SIZES.block_size, SIZES.num_kv_heads, SIZES.head_dim)
        assert cache.layout == "nd"
        assert all(finding.is_right for finding in findings.values())


def test_a_slow_candidate_that_has_no_better_stays_where_it_was(caplog: pytest.LogCaptureFixture) -> None:
    with device_on("Ascend910B4", "mm=slow:60, npu_linear=slow:60, bmm=slow:60") as (device, _):
        before = device.ops.candidates("linear")
        (finding,) = check_ops(device, of({"linear"}), SLOW_S)
        assert finding.rejections == ()
        assert finding.candidates == ("matmul",)
        assert device.ops.candidates("linear") == before
    assert "linear by matmul is slow on Ascend910B4" in caplog.text
    assert "nothing faster is left" in caplog.text
