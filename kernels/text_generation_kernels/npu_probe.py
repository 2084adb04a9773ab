"""What can be found out about NPUs without a backend for them: is torch_npu installed, does it load, how many cards.

Decides nothing. Importing this module imports no torch_npu; `probe_npu` does, where it is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NpuProbe:
    """What was found. `error` is one line, "" when torch_npu loads; `num_cards` counts the visible cards."""

    installed: bool
    error: str = ""
    num_cards: int = 0


def probe_npu() -> NpuProbe:
    """Look for torch_npu, load it, and ask it for its cards."""
    if importlib.util.find_spec("torch_npu") is None:
        return NpuProbe(installed=False)
    try:
        num_cards = importlib.import_module("torch_npu").npu.device_count()
    except Exception as error:  # a missing CANN library, a torch of another version: any type; the caller reports it
        first_line = next(iter(str(error).splitlines()), "")
        return NpuProbe(installed=True, error=f"{type(error).__name__}: {first_line}")
    return NpuProbe(installed=True, num_cards=num_cards)
