"""The environment of the tests on the torch_npu wheel: the project's own, and torch_npu on top.

`python -m tests.torch_npu_wheel.environment` makes it, and builds the stand-in for CANN in it.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.environments import CommandFailed, kept_environment, run
from tests.support.environments import install as pip_install
from text_generation_kernels.npu.soc import EMULATOR_VARIABLE

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".venv-npu"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
BUILD = ROOT / "emulator" / "text_generation_npu_emulator" / "wheel" / "build.py"  # run as it is, it imports no torch
CHIPS = ("Ascend910PremiumA", "Ascend310P3", "Ascend910B4")


class NotHere(Exception):
    """The wheel, or a compiler for the stand-in, cannot be had. The message is one line."""


def make_wheel_environment() -> Path:
    """Its interpreter. Takes some seconds the first time. Raises NotHere."""
    lines = [line.partition("#")[0].strip() for line in REQUIREMENTS.read_text().splitlines()]
    try:
        python = kept_environment("torch_npu", [line for line in lines if line], CACHE, _install)
        run([str(python), str(BUILD)])
    except CommandFailed as error:
        raise NotHere(f"{error}: {error.lines[-1] if error.lines else 'no output'}") from None
    return python


def _install(python: Path, requirements: Sequence[str]) -> None:
    # torch and all else are those of the environment that runs us, so that torch is not installed twice.
    [packages] = python.parent.parent.glob("lib/python*/site-packages")
    ours = sysconfig.get_path("purelib")
    (packages / "_project.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    try:
        pip_install(python, requirements, "--no-deps")
    except CommandFailed as error:
        machine = f"Python {platform.python_version()} on {platform.machine()}"
        error.lines.append(f"{', '.join(requirements)} cannot be installed for {machine}")
        raise


def on_wheel(chip: str | None = None) -> dict[str, str]:
    """What the environment of a process says that is to use the emulated NPU with the wheel; None: the caller does."""
    chosen = {} if chip is None else {EMULATOR_VARIABLE: chip}
    return {
        **chosen,
        f"{EMULATOR_VARIABLE}_HOST": "wheel",
        "OMP_NUM_THREADS": "1",
        # Else `import torch` imports torch_npu, before it has its CANN.
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }


def run_tests(python: Path, chip: str, *arguments: str, environ: Mapping[str, str] | None = None) -> str:
    """Run pytest on the wheel, as that chip. Returns: its output. Raises AssertionError with it."""
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={**os.environ, **on_wheel(chip), **(environ or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
    return done.stdout


def main() -> int:
    try:
        print(make_wheel_environment())
    except NotHere as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
