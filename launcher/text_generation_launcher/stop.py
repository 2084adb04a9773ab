"""Being asked to stop: SIGINT, SIGTERM and SIGHUP are noted, and the main loop looks."""

from __future__ import annotations

import signal
import time
from types import FrameType

POLL_S = 0.1


class Stopped(Exception):
    """The launcher was asked to stop while it waited for something."""


class StopRequest:
    """What signals have asked for. Plain attributes only: a handler may interrupt any line, so it takes no lock."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None  # the first one
        self.is_urgent = False  # a second Ctrl-C: do not wait for anything

    def install(self) -> None:
        """Handle the signals from now on; from the main thread."""
        signal.signal(signal.SIGINT, self._note)
        signal.signal(signal.SIGTERM, self._note)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else it is nohup's wish to go on
            signal.signal(signal.SIGHUP, self._note)
        # A parent may have left it ignored, and then no child can be waited for.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def sleep(self) -> None:
        """Wait one poll interval.

        Raises:
            Stopped: the launcher was asked to stop.
        """
        self._check()
        time.sleep(POLL_S)
        # Again, before the caller looks at children: a service manager may have sent the same signal to all of them.
        self._check()

    def _check(self) -> None:
        if self.signal is not None:
            raise Stopped

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = signal.Signals(number)
        elif number == signal.SIGINT:
            self.is_urgent = True
