"""The tests of ops, and those of `on_chip`, on an emulated chip of every family, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from text_generation_kernels.npu.soc import EMULATOR_VARIABLE

ROOT = Path(__file__).parents[3]
CHIPS = ("Ascend910PremiumA", "Ascend310P3", "Ascend910B4", "Ascend910_9391")
PATHS = ("tests/kernels/test_ops.py", "tests/kernels/test_attention.py", "tests/kernels/npu/on_chip")


def run_tests(chip: str, *arguments: str, **environment: str) -> None:
    path = os.pathsep.join([str(ROOT / "emulator"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={**os.environ, EMULATOR_VARIABLE: chip, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
def test_ops_on_the_chip(chip: str) -> None:
    run_tests(chip, *PATHS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "chip"),
    [("2.1.0", "Ascend910B4"), ("2.1.0", "Ascend310P3"), ("2.5.1", "Ascend310P3"), ("2.8.0", "Ascend910B4")],
)
def test_candidates_that_an_older_release_has(release: str, chip: str) -> None:
    run_tests(chip, f"{PATHS[2]}/test_every_candidate.py", **{f"{EMULATOR_VARIABLE}_TORCH_NPU": release})


@pytest.mark.slow
def test_ops_made_of_plain_torch() -> None:
    run_tests("Ascend910B4", *PATHS[:2], TEST_NPU_PLAIN="1")


@pytest.mark.slow
def test_choosing_tokens_on_the_chip() -> None:
    run_tests("Ascend910PremiumA", "tests/kernels/test_sampling.py")
