"""What is true on the host made of Python is true on the wheel: the tests of ops, and those of the wheel itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.torch_npu_wheel.environment import CHIPS, run_tests

PATHS = (
    "tests/torch_npu_wheel/on_wheel",
    "tests/kernels/npu/on_chip",
    "tests/kernels/test_ops.py",
    "tests/kernels/test_attention.py",
)
AT_ONCE = 2  # each takes a processor and 1 GB


@pytest.fixture(scope="module")
def runs(wheel_python: Path) -> Iterator[dict[str, Future[str]]]:
    """The runs of all chips, started together."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {chip: pool.submit(run_tests, wheel_python, chip, *PATHS) for chip in CHIPS}


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
def test_ops_on_the_chip(runs: dict[str, Future[str]], chip: str) -> None:
    runs[chip].result()
