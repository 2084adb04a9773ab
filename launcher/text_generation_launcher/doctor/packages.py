"""Versions of Python packages, from their metadata: nothing is imported."""

from __future__ import annotations

import platform
import re

from text_generation_launcher.doctor.facts import PackageFacts
from text_generation_launcher.doctor.host import Host

OUR_PACKAGE = "text-generation-ascend"
# What CANN's op compiler imports. On chips that compile at run time an op fails without them, with an inner error.
CANN_PYTHON = (
    "absl-py",
    "attrs",
    "cffi",
    "cloudpickle",
    "decorator",
    "ml-dtypes",
    "numpy",
    "psutil",
    "pyyaml",
    "scipy",
    "sympy",
    "tornado",
)
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*(?:>=\s*(?P<least>[0-9.]+))?")


def probe_packages(host: Host) -> PackageFacts:
    missing, outdated = _unmet(host)
    return PackageFacts(
        python=platform.python_version(),
        torch=host.version("torch"),
        torch_npu=host.version("torch_npu"),
        numpy=host.version("numpy"),
        missing=missing,
        outdated=outdated,
        cann_python_missing=tuple(name for name in CANN_PYTHON if host.version(name) is None),
    )


def release(version: str) -> tuple[int, ...]:
    """The numbers of "2.1.0.post8" or "2.8.0+cpu" that count for compatibility: (2, 1, 0)."""
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(int(part) for part in match[0].split(".")[:3]) if match else ()


def _unmet(host: Host) -> tuple[tuple[str, ...], tuple[str, ...]]:
    missing, outdated = [], []
    for requirement in host.requirements(OUR_PACKAGE):
        needed, _, marker = requirement.partition(";")
        match = _REQUIREMENT.match(needed.strip())
        if match is None or "extra" in marker:
            continue
        version = host.version(match["name"])
        if version is None:
            missing.append(needed.strip())
        elif match["least"] and release(version) < release(match["least"]):
            outdated.append(f"{needed.strip()} ({version} is installed)")
    return tuple(missing), tuple(outdated)
