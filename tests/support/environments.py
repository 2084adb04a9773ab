"""Python environments beside the server's own, made on demand and kept: a folder for each list of requirements."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


class CommandFailed(Exception):
    """pip or venv ended with an error."""

    def __init__(self, command: Sequence[str], status: int, output: str) -> None:
        super().__init__(f"`{' '.join(command)}` ended with status {status}")
        self.lines = output.splitlines()


def kept_environment(
    name: str, requirements: Sequence[str], cache: Path, install: Callable[[Path, Sequence[str]], None]
) -> Path:
    """An environment below `cache`, made unless it is there already.

    Environments of other requirements under the same name are removed. Safe when several processes ask at once.

    Args:
        install: puts the requirements into the environment of an interpreter.
    Returns: its interpreter. Raises CommandFailed.
    """
    folder = cache / name / _key(requirements)
    python, stamp = folder / "bin" / "python", folder / ".installed"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists():
            shutil.rmtree(cache / name, ignore_errors=True)
            run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
            install(python, requirements)
            stamp.touch()
    return python


def install(python: Path, requirements: Sequence[str], *options: str) -> None:
    """By pip. Raises CommandFailed."""
    # --no-compile: most modules are never imported. Those that are, are compiled then, and kept.
    run([*pip(python), "install", "--no-compile", *options, *requirements])


def pip(python: Path) -> list[str]:
    """Our own pip, working for another interpreter: a pip for each would double the time of a small environment."""
    return [sys.executable, "-m", "pip", "--no-input", "--python", str(python)]


def run(command: Sequence[str]) -> None:
    """Raises CommandFailed."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        check=False,
    )
    if done.returncode != 0:
        raise CommandFailed(command, done.returncode, done.stdout)


def _key(requirements: Sequence[str]) -> str:
    text = "\n".join([*requirements, f"python {sys.version_info.major}.{sys.version_info.minor}"])
    return hashlib.sha256(text.encode()).hexdigest()[:12]
