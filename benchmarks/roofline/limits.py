"""This machine's limits on some threads, measured by a small C++ program that has none of our kernels."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from text_generation_kernels.native.build import compiler

_SOURCE = Path(__file__).with_name("limits.cpp")


class NoLimits(Exception):
    """They cannot be measured here; one line that says why."""


@dataclass(frozen=True)
class Limits:
    """Bytes read a second, and floating point operations a second by instruction set."""

    bytes_per_s: float
    flops: Mapping[str, float]

    def flops_of(self, isa: str) -> float:
        """An instruction set's arithmetic; of one that is not measured by that name, the most that any can."""
        return self.flops.get(isa, max(self.flops.values()))

    def seconds(self, num_bytes: float, operations: float, isa: str) -> float:
        """The least time that so much work can take."""
        return max(num_bytes / self.bytes_per_s, operations / self.flops_of(isa))


def measure_limits(num_threads: int, seconds: float, num_bytes: int) -> Limits:
    """Compile and run the program; `seconds` for each number. Raises NoLimits.

    Args:
        num_bytes: read in turn, over and over: the size of the weights, some of which a large cache may keep.
    """
    command = compiler()
    if command is None:
        raise NoLimits("limits are measured by a C++ program, and there is no C++ compiler here: install g++")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "limits"
        flags = ["-O3", "-std=c++17", "-pthread"]
        built = subprocess.run(
            [command, *flags, str(_SOURCE), "-o", str(program)], capture_output=True, text=True, check=False
        )
        if built.returncode != 0:
            raise NoLimits(f"{command} does not compile {_SOURCE.name}: {(built.stderr.splitlines() or ['?'])[0]}")
        ran = subprocess.run(
            [program, str(num_threads), f"{seconds:g}", str(num_bytes >> 20)],
            capture_output=True,
            text=True,
            check=False,
        )
    if ran.returncode != 0:
        raise NoLimits(f"{_SOURCE.name} ended with status {ran.returncode}")
    return read_limits(ran.stdout)


def read_limits(output: str) -> Limits:
    """Lines "name value": "bytes", and instruction sets."""
    numbers = {name: float(value) for name, value in (line.split() for line in output.splitlines())}
    return Limits(numbers.pop("bytes"), numbers)
