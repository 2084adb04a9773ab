"""What `make bench-roofline`, `bench-router` and `bench-scale` compute, small and on known numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import scale
from benchmarks.roofline.__main__ import Timed, phase_table, step_table
from benchmarks.roofline.limits import Limits, read_limits
from benchmarks.roofline.phases import ATTENTION, HEAD, LINEARS, Amount, Shape, contexts, medians
from benchmarks.router import __main__ as router
from tests.support.checkpoints import make_checkpoint

LIMITS = Limits(10e9, {"avx2": 100e9, "avx512": 200e9})


def test_limits_are_read_by_name() -> None:
    assert read_limits("bytes 1e10\navx2 1e11\navx512 2e11\n") == LIMITS


def test_work_is_bound_by_the_slower_of_memory_and_arithmetic() -> None:
    assert LIMITS.seconds(10e9, 50e9, "avx2") == pytest.approx(1.0)
    assert LIMITS.seconds(1e9, 50e9, "avx2") == pytest.approx(0.5)
    assert LIMITS.seconds(1e9, 50e9, "avx512") == pytest.approx(0.25)
    assert LIMITS.seconds(0, 50e9, "not measured") == pytest.approx(0.25)


def test_share_that_is_not_kernels_and_fractions_of_the_limit() -> None:
    timed = Timed(
        Shape("c=1", 1, 200),
        wall_s=0.050,
        kernels_s=0.045,
        phases_s={LINEARS: 0.030, HEAD: 0.010},
        amounts={LINEARS: Amount(240e6, 0), HEAD: Amount(0, 0.6e9), ATTENTION: Amount(10e6, 0)},
    )
    # 250 MB at 10 GB/s: 25 ms.
    assert step_table([timed], LIMITS, "avx2", "bf16").splitlines()[2] == (
        "| c=1 | 50.00 | 45.00 | 10% | 25.00 | 50% | 56% |"
    )
    rows = phase_table([timed], LIMITS, "avx2", "bf16").splitlines()
    assert rows[2] == f"| {LINEARS} | 30.00 (80%) |"
    assert rows[3] == f"| {HEAD} | 10.00 (60%) |"
    assert rows[4] == f"| {ATTENTION} | - |"


def test_each_phase_is_held_against_the_arithmetic_that_it_uses() -> None:
    limits = Limits(10e9, {"avx512": 100e9, "amx": 400e9})
    amounts = {LINEARS: Amount(0, 8e9), ATTENTION: Amount(0, 4e9)}
    timed = Timed(Shape("c=1", 1, 200), 0.060, 0.050, {LINEARS: 0.040, ATTENTION: 0.020}, amounts)
    # 20 ms of linears by AMX, or 80 ms with float32 weights, and 10 ms of attention by AMX.
    assert step_table([timed], limits, "amx", "bf16").splitlines()[2].split("|")[5] == " 30.00 "
    assert step_table([timed], limits, "amx", "float32").splitlines()[2].split("|")[5] == " 90.00 "
    rows = phase_table([timed], limits, "amx", "int8").splitlines()
    assert rows[2] == f"| {LINEARS} | 40.00 (50%) |"
    assert rows[4] == f"| {ATTENTION} | 20.00 (50%) |"


def test_contexts_go_evenly_from_the_first_to_the_last() -> None:
    assert contexts(131, 226, 4) == [131, 162, 194, 226]
    assert contexts(512, 512, 1) == [512]


def test_variants_take_turns_after_one_that_does_not_count() -> None:
    calls: list[str] = []
    times_s = medians({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, seconds=0.0, min_rounds=2)
    assert calls == ["a", "b"] * 3
    assert set(times_s) == {"a", "b"}


def test_planning_is_timed_with_every_sequence_running() -> None:
    assert 0 < scale.time_planning(num_running=4, num_waiting=10, num_steps=3) < 1
    assert 0 < scale.time_admission(1000, rounds=2) < 1


def test_scale_tables_show_cost_for_each_token() -> None:
    assert scale.batch_table({1: 0.010, 4: 0.020}).splitlines()[2:] == [
        "| 1 | 10.00 | 10000 | 1.00 |",
        "| 4 | 20.00 | 5000 | 0.50 |",
    ]
    # 4 rows of 1000 tokens in 4 ms
    assert scale.context_table({1000: (0.010, 0.004)}).splitlines()[2] == "| 1000 | 10.00 | 4.00 | 1000 |"


def test_router_is_measured_on_both_routes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_checkpoint(tmp_path / "model")
    assert router.main(["--model", str(model), "--streams", "3", "--tokens", "60", "--rounds", "1"]) == 0
    rows = [line.strip("|").split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| /")]
    assert [row[0].strip() for row in rows] == ["/generate_stream", "/v1/completions"]
    assert all(float(row[2]) > 0 for row in rows)
