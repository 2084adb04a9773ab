"""Python environments of the client libraries that the server is tested with, made on demand and kept.

Clients do not live in the server's own environment: text-generation needs a huggingface_hub below 1.0, with which pip
would take transformers back to 4.x. Nor can they all live in one: the two of llama-index need different cores, and
huggingface_hub is tested in its old and its new generation. Knows nothing about what the clients are asked to do.

`python -m tests.support.client_envs` makes all of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Pinned are the clients and what carries their bytes; pip chooses the rest.
ENVIRONMENTS: Mapping[str, Sequence[str]] = {
    "hub-0.36": (
        "text-generation==0.7.0",
        "langchain-community==0.4.2",
        "langchain-huggingface==1.2.3",
        "langchain-core==1.7.7",
        "llama-index-llms-text-generation-inference==0.3.3",
        "tgi==2.4.2",
        "huggingface_hub==0.36.2",
        "aiohttp==3.14.5",
        "requests==2.34.2",
        "pydantic==2.14.4",
    ),
    "hub-2": (
        "openai==3.57.0",
        "llama-index-llms-huggingface-api==0.8.0",
        "huggingface_hub==2.4.0",
        "httpx2==2.16.2",
        "pydantic==2.14.4",
    ),
}

CACHE = Path(__file__).parents[2] / ".venv-clients"
_SHOWN_LINES = 15  # of pip's output when it fails


class EnvironmentNotMade(Exception):
    """pip or venv failed; says which requirements, and pip's last lines."""


def client_python(name: str) -> Path:
    """The interpreter of one of ENVIRONMENTS. Takes minutes the first time. Raises EnvironmentNotMade."""
    return make_environment(name, ENVIRONMENTS[name], CACHE)


def make_environments() -> Mapping[str, Path]:
    """All of them, side by side: pip mostly waits. Returns: their interpreters. Raises EnvironmentNotMade."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(ENVIRONMENTS, pool.map(client_python, ENVIRONMENTS), strict=True))


def make_environment(name: str, requirements: Sequence[str], cache: Path) -> Path:
    """Install `requirements` in an environment below `cache`, unless they are there already.

    Environments of other requirements under the same name are removed. Safe when several processes ask at once.

    Returns: its interpreter. Raises EnvironmentNotMade.
    """
    folder = cache / name / _key(requirements)
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists():
            shutil.rmtree(cache / name, ignore_errors=True)
            # Our own pip installs into it: a pip for each would double the time of a small environment.
            pip = [sys.executable, "-m", "pip", "--python", str(python)]
            _run(name, requirements, [sys.executable, "-m", "venv", "--without-pip", str(folder)])
            # --no-compile: most modules are never imported. Those that are, are compiled then, and kept.
            _run(name, requirements, [*pip, "install", "--no-input", "--no-compile", *requirements])
            stamp.touch()
    return python


def _key(requirements: Sequence[str]) -> str:
    text = "\n".join([*requirements, f"python {sys.version_info.major}.{sys.version_info.minor}"])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _run(name: str, requirements: Sequence[str], command: Sequence[str]) -> None:
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
        last = "\n".join(done.stdout.splitlines()[-_SHOWN_LINES:])
        raise EnvironmentNotMade(
            f"the client environment {name} ({', '.join(requirements)}) could not be made; "
            f"`{' '.join(command)}` ended with status {done.returncode}:\n{last}"
        )


def main() -> int:
    try:
        for name, python in make_environments().items():
            print(f"{name}: {python}")
    except EnvironmentNotMade as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
