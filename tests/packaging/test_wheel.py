"""The wheel is all that is needed: away from the checkout its programs answer and serve."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.support.checkpoints import make_checkpoint
from tests.support.servers import Server, free_port, wait_healthy
from text_generation_cli import __version__

PACKAGES = {
    f"text_generation_{name}" for name in ("proto", "cli", "launcher", "router", "server", "kernels", "benchmark")
}  # what the wheel installs, and nothing beside it
PROGRAMS = ("text-generation-launcher", "text-generation-router", "text-generation-server", "text-generation-benchmark")


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_wheel_holds_the_packages_and_nothing_else(names: set[str]) -> None:
    tops = {name.partition("/")[0] for name in names}
    assert tops == PACKAGES | {f"text_generation_ascend-{__version__}.dist-info"}
    assert not [name for name in names if "test" in name.lower() or name.endswith(".pyc")]


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_packages_are_marked_as_typed(names: set[str], package: str) -> None:
    assert f"{package}/py.typed" in names


def test_wheel_holds_the_wire_and_its_source(names: set[str]) -> None:
    folder = "text_generation_proto"
    files = ("generate.proto", "generate_pb2.py", "generate_pb2.pyi", "generate_pb2_grpc.py")
    assert {f"{folder}/{name}" for name in files} <= names


def test_wheel_holds_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith("/LICENSE"))
        assert "Apache License" in archive.read(path).decode()


def run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_packages_come_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    program = (
        "import importlib, json, sys; "
        "print(json.dumps([importlib.import_module(name).__file__ for name in sys.argv[1:]]))"
    )
    files = json.loads(run([str(installed / "python"), "-c", program, *sorted(PACKAGES)], tmp_path))
    assert len(files) == len(PACKAGES)
    assert all(Path(file).is_relative_to(installed.parent) for file in files), files


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_says_its_version(installed: Path, tmp_path: Path, program: str) -> None:
    assert run([str(installed / program), "--version"], tmp_path).split() == [program, __version__]


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_shows_its_usage(installed: Path, tmp_path: Path, program: str) -> None:
    assert run([str(installed / program), "--help"], tmp_path).startswith(f"usage: {program}")


def test_installed_wheel_serves_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model")
    port = free_port()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    log_path = tmp_path / "log"
    # As from a shell in which the environment is active.
    environ = {**os.environ, "PATH": f"{installed}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = ["text-generation-launcher", "--model-id", str(model), "--port", str(port)]
    command += ["--shard-uds-path", str(tmp_path / "shard")]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, cwd=elsewhere, env=environ, stdout=log, stderr=subprocess.STDOUT)
    server = Server(process, port, log_path)
    try:
        wait_healthy(server)
        assert server.generate("The capital of France", max_new_tokens=4)["generated_text"]
        assert {child.cmdline()[0] for child in server.children()} == {str(installed / "python")}
        assert server.stop() == 0
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in server.log
