"""Builds the library and the program beside this file, and runs it: `python -m tests.kernels.native.driver.run WAY`.

plain: as the package builds it. sanitize: under the address and undefined behaviour sanitizers. neon: for Arm with a
cross compiler, under qemu's user emulation (Debian: g++-aarch64-linux-gnu and qemu-user).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from text_generation_kernels.native.build import SOURCES, build, compiler


@dataclass(frozen=True)
class Way:
    """A compiler, its flags, and what runs the result. `compiler` None: this machine's."""

    compiler: str | None = None
    machine: str | None = None
    flags: tuple[str, ...] = ()
    runner: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """What is not installed, of what this way needs."""
        if self.compiler is None and compiler() is None:
            return "a C++ compiler"
        needed = [name for name in (self.compiler, *self.runner[:1]) if name is not None]
        return next((name for name in needed if shutil.which(name) is None), None)


WAYS = {
    "plain": Way(),
    # What is left out of "undefined" holds for every load of a vector by design, or takes the compiler minutes.
    "sanitize": Way(
        flags=(
            "-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
            "-fno-sanitize=pointer-overflow,null,alignment,object-size",
        )
    ),
    "neon": Way("aarch64-linux-gnu-g++", "aarch64", (), ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")),
}  # fmt: skip


def run(way: Way, library: Path | None = None) -> str:
    """Returns what the program printed.

    Args:
        library: one that is built already.
    Raises: subprocess.CalledProcessError: it found something wrong.
    """
    with tempfile.TemporaryDirectory() as folder:
        if library is None:
            library = build(
                Path(folder) / "libunder_test.so", machine=way.machine, cxx=way.compiler, extra_flags=way.flags
            )
        program = Path(folder) / "driver"
        cxx = way.compiler or compiler()
        assert cxx is not None
        source = Path(__file__).parent / "driver.cpp"
        flags = ("-std=c++17", "-O1", "-pthread", *way.flags, f"-I{SOURCES}", f"-Wl,-rpath,{library.parent}")
        _checked([cxx, *flags, str(source), str(library), "-o", str(program)])
        return _checked([*way.runner, str(program)])


def _checked(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def main(name: str) -> int:
    way = WAYS[name]
    missing = way.missing()
    if missing is not None:
        print(f"{missing} is not installed", file=sys.stderr)
        return 1
    try:
        print(run(way), end="")
    except subprocess.CalledProcessError as error:
        print(error.stdout, end="")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
