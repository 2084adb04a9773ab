"""The library as other processors and sanitizers see it: a C++ program against plain loops, here in the plain way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernels.implementations import library_or_skip
from tests.kernels.native.driver.run import WAYS, run


def test_the_program_finds_nothing_wrong() -> None:
    library = library_or_skip()
    missing = WAYS["plain"].missing()
    if missing is not None:
        pytest.skip(f"{missing} is not installed")
    output = run(WAYS["plain"], Path(library.functions._name))
    assert output.splitlines()[:-1] == list(library.instruction_sets)
    assert output.endswith("checks, 0 failed\n")
