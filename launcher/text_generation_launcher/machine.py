"""What `--env` prints: versions and the machine, found without importing anything heavy."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from text_generation_cli import __version__
from text_generation_launcher.cpus import usable_cores

_PACKAGES = ("torch", "torch_npu", "transformers", "tokenizers", "safetensors", "grpcio", "fastapi", "uvicorn", "numpy")


def describe_machine(environ: Mapping[str, str]) -> list[str]:
    """One line for each fact."""
    return [
        f"text-generation: {__version__}",
        f"python: {platform.python_version()}",
        f"platform: {platform.platform()}",
        f"cores: {usable_cores()}",
        *(f"{package}: {_version(package)}" for package in _PACKAGES),
        f"CANN: {_cann_version(environ)}",
        f"npus: {' '.join(sorted(path.name for path in Path('/dev').glob('davinci[0-9]*'))) or 'none'}",
    ]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cann_version(environ: Mapping[str, str]) -> str:
    home = environ.get("ASCEND_HOME_PATH")
    if not home:
        return "not found (ASCEND_HOME_PATH is not set)"
    try:
        lines = (Path(home) / "version.cfg").read_text(errors="replace").splitlines()
    except OSError:
        return f"in {home}, version unknown"
    versions = [line.partition("=")[2].strip("[] ") for line in lines if "running_version" in line]
    return f"in {home}, version {versions[0] if versions else 'unknown'}"
