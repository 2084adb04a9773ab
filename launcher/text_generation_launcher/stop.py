"""Being asked to stop: SIGINT, SIGTERM and SIGHUP are noted, and the main loop looks when it wakes up."""

from __future__ import annotations

import signal
import threading
from types import FrameType

POLL_S = 0.1


class Stopped(Exception):
    """The launcher was asked to stop while it waited for something."""


class StopRequest:
    """What signals have asked for. The handler sets plain attributes only: it may interrupt any line, so it takes no
    lock, and what it has noted is seen at the next poll.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None  # the first one
        self.is_urgent = False  # a second Ctrl-C: do not wait for anything
        self._woken = threading.Event()

    def install(self) -> None:
        """Handle the signals from now on; from the main thread."""
        signal.signal(signal.SIGINT, self._note)
        signal.signal(signal.SIGTERM, self._note)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else it is nohup's wish to go on
            signal.signal(signal.SIGHUP, self._note)
        # A parent may have left it ignored, and then no child can be waited for.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def wake(self) -> None:
        """End the main loop's present or next sleep: there is something to look at. For threads, not for handlers."""
        self._woken.set()

    def sleep(self) -> None:
        """Wait one poll interval, or until woken.

        Raises:
            Stopped: the launcher was asked to stop.
        """
        self._check()
        self._woken.wait(POLL_S)
        self._woken.clear()
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
