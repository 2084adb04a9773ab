"""A child that must not outlive the launcher, even one that was ended by SIGKILL.

The kernel then sends SIGTERM, so that sockets and the device are given back in order; a child that has not ended a few
seconds later ends itself. Otherwise shards would hold the device's memory with nobody left to stop them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import MutableMapping

LAUNCHER_PID = "TEXT_GENERATION_LAUNCHER_PID"

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.5
_GRACE_S = 5.0


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
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if str(os.getppid()) != launcher_pid:  # it died before the request was made
        os._exit(1)
    threading.Thread(target=_end_after_parent, args=(os.getppid(),), name="orphan-watch", daemon=True).start()
    return True


def _end_after_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_POLL_S)
    time.sleep(_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
