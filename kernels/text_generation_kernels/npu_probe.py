"""What can be found out about NPUs before one is used: is torch_npu installed, does it load, how many cards.

Decides nothing. Importing this module imports no torch_npu; `load_torch_npu` does, and is the one place that does.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

from text_generation_kernels.npu.soc import EMULATOR_VARIABLE

_EMULATOR = "text_generation_npu_emulator"


@dataclass(frozen=True, slots=True)
class NpuProbe:
    """What was found. `error` is one line, "" when torch_npu loads; `num_cards` counts the visible cards."""

    installed: bool
    error: str = ""
    num_cards: int = 0


def load_torch_npu() -> Any:
    """The torch_npu module.

    Raises: whatever its import does where CANN is missing, or a torch of another version is installed.
    """
    if os.environ.get(EMULATOR_VARIABLE) and "torch_npu" not in sys.modules:  # once: it empties the emulated cards
        importlib.import_module(_EMULATOR).install_from_environment()
    return importlib.import_module("torch_npu")


def probe_npu() -> NpuProbe:
    """Look for torch_npu, load it, and ask it for its cards."""
    if not os.environ.get(EMULATOR_VARIABLE) and importlib.util.find_spec("torch_npu") is None:
        return NpuProbe(installed=False)
    try:
        num_cards = int(load_torch_npu().npu.device_count())
    except Exception as error:  # a missing CANN library, a torch of another version: any type; the caller reports it
        first_line = next(iter(str(error).splitlines()), "")
        return NpuProbe(installed=True, error=f"{type(error).__name__}: {first_line}")
    return NpuProbe(installed=True, num_cards=num_cards)


def versions() -> str:
    """What has to fit together, for a message: torch_npu, torch and CANN's folder."""
    try:
        torch_npu = metadata.version("torch_npu")
    except metadata.PackageNotFoundError:
        torch_npu = "of unknown version"
    home = os.environ.get("ASCEND_HOME_PATH")
    return f"torch_npu {torch_npu}, torch {torch.__version__}, ASCEND_HOME_PATH {home or 'not set'}"
