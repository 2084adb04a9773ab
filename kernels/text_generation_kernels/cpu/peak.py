"""How much memory this process holds, and the most it has held since a reset."""

from __future__ import annotations

import logging
from pathlib import Path

import psutil

logger = logging.getLogger(__name__)


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    return int(psutil.Process().memory_info().rss)


class PeakMeter:
    """The most memory this process has held since a reset, by the kernel's own high-water mark.

    Where the mark cannot be reset (a read-only /proc), it is the mark of the process's whole life: too high a figure,
    which reserves more than needed, never less.
    """

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        self._proc = proc
        self._at_reset = resident_bytes()

    def reset(self) -> None:
        try:
            (self._proc / "clear_refs").write_text("5")  # proc(5): resets VmHWM to the present size
        except OSError as error:
            logger.info("the memory high-water mark cannot be reset (%s): more memory than needed is held back", error)
        self._at_reset = resident_bytes()

    def bytes_above_reset(self) -> int:
        for line in (self._proc / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return max(0, int(line.split()[1]) * 1024 - self._at_reset)
        return 0
