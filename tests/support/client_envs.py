"""Python environments of the client libraries that the server is tested with, made on demand and kept.

Clients do not live in the server's own environment: text-generation needs a huggingface_hub below 1.0, with which pip
would take transformers back to 4.x. Nor can they all live in one: the two of llama-index need different cores, and
huggingface_hub is tested in its old and its new generation. Knows nothing about what the clients are asked to do.

`python -m tests.support.client_envs` makes all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.environments import CommandFailed, install, kept_environment

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

    Returns: its interpreter. Raises EnvironmentNotMade.
    """
    try:
        return kept_environment(name, requirements, cache, install)
    except CommandFailed as error:
        last = "\n".join(error.lines[-_SHOWN_LINES:])
        raise EnvironmentNotMade(
            f"the client environment {name} ({', '.join(requirements)}) could not be made; {error}:\n{last}"
        ) from None


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
