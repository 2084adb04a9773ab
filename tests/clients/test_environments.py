"""The clients' environments hold the clients and not the server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.client_envs import ENVIRONMENTS, EnvironmentNotMade, client_python, make_environment

DISTRIBUTIONS = """
import importlib.metadata, json
print(json.dumps({found.name.lower().replace("_", "-"): found.version for found in importlib.metadata.distributions()}))
"""


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_what_is_pinned_is_there_and_what_the_server_needs_is_not(name: str) -> None:
    command = [str(client_python(name)), "-c", DISTRIBUTIONS]
    versions = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for requirement in ENVIRONMENTS[name]:
        package, version = requirement.replace("_", "-").split("==")
        assert versions[package] == version
    assert {"torch", "transformers", "text-generation-ascend"}.isdisjoint(versions)


def test_what_pip_cannot_install_is_said_and_is_not_taken_for_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(EnvironmentNotMade, match=r"environment none \(text-generation==0\.0\.1\)") as caught:
        make_environment("none", ["text-generation==0.0.1"], tmp_path)
    assert "No matching distribution found for text-generation==0.0.1" in str(caught.value)
    with pytest.raises(EnvironmentNotMade):
        make_environment("none", ["text-generation==0.0.1"], tmp_path)
