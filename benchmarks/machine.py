"""What the numbers were measured on, in one line."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

_INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "bf16", "sve")


def machine_line() -> str:
    """E.g. "2 x AMD EPYC (avx2), Linux x86_64, Python 3.11.7, torch 2.13.0"."""
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    has = set((facts.get("flags") or facts.get("Features") or "").split())
    sets = ", ".join(name for name in _INSTRUCTION_SETS if name in has) or "no vector extensions known here"
    return (
        f"{os.cpu_count()} x {facts.get('model name', platform.processor() or 'CPU')} ({sets}), "
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, torch {version('torch')}"
    )


def load_average() -> float:
    """Processes that wanted to run, averaged over the last minute: near 0 on a quiet machine."""
    return os.getloadavg()[0]
