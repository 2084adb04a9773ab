"""Tests on the real torch_npu wheel, over a stand-in for the CANN runtime: `make check-torch-npu` runs them.

`make test` does not: they fetch the wheel, and say nothing that the tests on the other host do not say first.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.torch_npu_wheel.environment import NotHere, make_wheel_environment

VARIABLE = "TEST_TORCH_NPU_WHEEL"

collect_ignore_glob = [] if os.environ.get(VARIABLE) else ["*"]


@pytest.fixture(scope="session")
def wheel_python() -> Path:
    """The interpreter that has torch_npu. Where it cannot be had, tests are skipped, and fail in CI."""
    try:
        return make_wheel_environment()
    except NotHere as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI needs the torch_npu wheel and g++: {error}")
        pytest.skip(f"skipped because {error}")
