"""What pyproject.toml asks for is what the code imports, and an Arm host finds wheels for all of it."""

from __future__ import annotations

import ast
import email
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent.parent
SOURCES = [
    path
    for package in ("proto", "cli", "launcher", "router", "server", "kernels", "bench")
    for path in sorted((ROOT / package).rglob("*.py"))
]
# Needed at run time by a library that does not ask for them itself.
NEEDED_BY_OTHERS = {
    "httptools": "uvicorn, to read HTTP",
    "sentencepiece": "transformers, to read tokenizer.model",
}
# What brings a package that several distributions share, or that another one pins to its own version.
BROUGHT_BY = {
    "google": {"protobuf"},
    "opentelemetry": {"opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-grpc"},
    "pydantic_core": {"pydantic"},
}
PYTHONS = ("3.10", "3.11")
# The newer wheels of llguidance want glibc 2.31; all others do with 2.28.
PLATFORMS = ("manylinux_2_31_aarch64", "manylinux_2_28_aarch64", "manylinux2014_aarch64")


@pytest.fixture(scope="module")
def requirements(wheel: Path) -> list[Requirement]:
    """Of the wheel, not of an installation that may be older than pyproject.toml."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(path))
    return [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]


@pytest.fixture(scope="module")
def run_time(requirements: list[Requirement]) -> dict[str, Requirement]:
    """By name, without those of the extras."""
    return {canonicalize_name(need.name): need for need in requirements if "extra" not in str(need.marker)}


def pinned() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def constraints_of(python: str) -> list[str]:
    """What holds for that Python, without markers: pip evaluates them for the Python that it runs in."""
    held = [need for need in pinned() if need.marker is None or need.marker.evaluate({"python_version": python})]
    return [f"{need.name}{need.specifier}" for need in held]


def imported() -> set[str]:
    """Distributions of the third-party modules that our packages import."""
    modules: set[str] = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                modules.add(node.module.partition(".")[0])
    third_party = {module for module in modules - sys.stdlib_module_names if not module.startswith("text_generation_")}
    distributions = packages_distributions()
    alone = {canonicalize_name(distributions.get(module, [module])[0]) for module in third_party - BROUGHT_BY.keys()}
    return alone.union(*(BROUGHT_BY[module] for module in third_party & BROUGHT_BY.keys()))


def test_every_import_is_a_declared_dependency(
    requirements: list[Requirement], run_time: dict[str, Requirement]
) -> None:
    optional = {canonicalize_name(need.name) for need in requirements if str(need.marker) == 'extra == "benchmark"'}
    assert imported() - run_time.keys() == optional


def test_every_declared_dependency_is_imported_or_needed_by_another(run_time: dict[str, Requirement]) -> None:
    assert run_time.keys() - imported() == NEEDED_BY_OTHERS.keys()


def test_every_constraint_is_for_something_asked_for(requirements: list[Requirement]) -> None:
    asked_for = {canonicalize_name(need.name) for need in requirements}
    assert {canonicalize_name(need.name) for need in pinned()} <= asked_for


def on_arm(python: str) -> list[str]:
    """pip's options for wheels of an Arm host, whatever runs pip."""
    options = ["--only-binary=:all:", "--python-version", python, "--disable-pip-version-check"]
    return options + [word for platform in PLATFORMS for word in ("--platform", platform)]


@pytest.fixture(scope="module")
def resolutions(
    run_time: dict[str, Requirement], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, subprocess.Popen[str]]]:
    """pip at work on everything but torch, for each of PYTHONS; all at once, as it mostly waits.

    Under our constraints: what they allow, the wider ranges of the wheel allow too, and pip finds it sooner.
    """
    wanted = [str(need) for name, need in run_time.items() if name != "torch"]
    running: dict[str, subprocess.Popen[str]] = {}
    for python in PYTHONS:
        folder = tmp_path_factory.mktemp("arm")
        constraints = folder / "constraints.txt"
        constraints.write_text("".join(f"{need}\n" for need in constraints_of(python)))
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-", *on_arm(python)]
        command += ["--ignore-installed", "--target", str(folder / "target"), "--constraint", str(constraints)]
        running[python] = subprocess.Popen(
            [*command, *wanted], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    yield running
    for process in running.values():
        process.kill()
        process.communicate()


def found_by(process: subprocess.Popen[str]) -> dict[str, str]:
    """The file that pip would take, by distribution."""
    report, errors = process.communicate()
    assert process.returncode == 0, errors
    return {
        canonicalize_name(item["metadata"]["name"]): item["download_info"]["url"].rpartition("/")[2]
        for item in json.loads(report)["install"]
    }


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute on a quiet machine
@pytest.mark.parametrize("python", PYTHONS)
def test_arm_hosts_find_wheels(
    resolutions: Mapping[str, subprocess.Popen[str]], run_time: dict[str, Requirement], python: str
) -> None:
    files = found_by(resolutions[python])
    assert run_time.keys() - {"torch"} <= files.keys()
    assert all(file.endswith(("aarch64.whl", "none-any.whl")) for file in files.values()), files


@pytest.mark.parametrize("python", PYTHONS)
def test_arm_hosts_find_torch(run_time: dict[str, Requirement], python: str) -> None:
    """Without what torch asks for itself: on Arm its newest wheels want CUDA, and an Ascend host takes the CPU build
    that its CANN names. Only the index is asked, since a resolution would fetch the whole wheel. Torch publishes wheels
    only, so what the index lists for an Arm host can be installed there.
    """
    command = [sys.executable, "-m", "pip", "index", "versions", *on_arm(python), "torch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("Available versions:"))
    versions = line.partition(":")[2].replace(" ", "").split(",")
    # The oldest that we allow is there too, for hosts that are tied to it.
    assert Version("2.1.0") in set(map(Version, versions))
    assert any(run_time["torch"].specifier.contains(version) for version in versions)
