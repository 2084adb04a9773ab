"""Builds the stand-in for the CANN runtime: one library, and the names under which torch_npu looks for it.

Compiled against the headers that the wheel brings, so that each function has the parameters torch_npu calls it with.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

SOURCES = Path(__file__).parent / "cann"
FOLDER = Path(__file__).parent / "build"  # one folder for each state of the sources
NAME = "cann_stand_in"
# What torch_npu's own libraries are linked to.
LIBRARIES = ("hccl", "ascendcl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel", "atb")
_FLAGS = ("-O1", "-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")
# The wheel's headers call some of its own functions deprecated.
_UNWARNED = ("-Wno-deprecated-declarations",)


class BuildError(RuntimeError):
    """The stand-in cannot be built here. The message is one line."""


def missing() -> str | None:
    """What is not here that the stand-in and its use need; None: nothing."""
    if shutil.which("g++") is None:
        return "g++ is not installed"
    if importlib.util.find_spec("torch_npu") is None:
        return "the torch_npu wheel is not installed"
    return None


def build() -> Path:
    """The folder of the libraries, which are built unless these very sources were built before.

    Raises: BuildError.
    """
    reason = missing()
    if reason is not None:
        raise BuildError(reason)
    folder = FOLDER / _digest()
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_suffix(f".{os.getpid()}")
            unfinished.mkdir()
            try:
                _build(unfinished, _headers())
                unfinished.rename(folder)
            finally:
                for other in FOLDER.iterdir():
                    if other.is_dir() and other != folder:
                        shutil.rmtree(other)  # processes that have it loaded keep it
    return folder


def _build(folder: Path, headers: Path) -> None:
    sources = [str(path) for path in sorted(SOURCES.glob("*.cpp"))]
    named = f"-Wl,-soname,lib{NAME}.so"
    _run(["g++", *_FLAGS, *_UNWARNED, f"-I{headers}", *sources, "-o", str(folder / f"lib{NAME}.so"), named])
    linked = (f"-L{folder}", "-Wl,--no-as-needed", f"-l{NAME}", "-Wl,-rpath,$ORIGIN")
    for name in LIBRARIES:
        target = folder / f"lib{name}.so"
        _run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", str(target), f"-Wl,-soname,{target.name}", *linked])


def _headers() -> Path:
    spec = importlib.util.find_spec("torch_npu")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "include" / "third_party" / "acl" / "inc"


def _digest() -> str:
    """Of the sources, and of the release whose headers they are compiled against."""
    digest = hashlib.sha256(metadata.version("torch_npu").encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise BuildError(f"{command[0]} failed: {lines[0] if lines else f'exit status {done.returncode}'}")


def main() -> int:
    try:
        print(build())
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
