"""A child that must not outlive the launcher: when the launcher dies, even by SIGKILL, the kernel kills the child.

Otherwise shards would go on holding the device's memory with nobody left to stop them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import MutableMapping

LAUNCHER_PID = "TEXT_GENERATION_LAUNCHER_PID"

_PR_SET_PDEATHSIG = 1


def die_with_parent(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Tie this process to the launcher that started it; called first thing in `main`.

    The launcher starts children from its main thread, whose end the kernel takes for the parent's. The variable is
    removed, so that programs started from here are not taken for the launcher's children.

    Returns:
        Whether a launcher started this process.
    """
    launcher_pid = environ.pop(LAUNCHER_PID, "")
    if not launcher_pid:
        return False
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if str(os.getppid()) != launcher_pid:  # it died before the request was made
        os._exit(1)
    return True
