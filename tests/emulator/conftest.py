"""Emulated machines for tests: one at a time, gone after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from text_generation_npu_emulator import Machine, emulated_npu

MachineMaker = Callable[..., Machine]


@pytest.fixture
def make_machine() -> Iterator[MachineMaker]:
    """Installs a machine: the SoC's name, then settings by name. The last one made counts."""
    with ExitStack() as stack:

        def make(soc_name: str = "Ascend910B4", /, **settings: object) -> Machine:
            return stack.enter_context(emulated_npu(soc_name, **settings))

        yield make


@pytest.fixture
def machine(make_machine: MachineMaker) -> Machine:
    """An Ascend910B4."""
    return make_machine()
