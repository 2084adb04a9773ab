"""One child process: its process group, its output, whether it is ready, and its end.

Knows nothing about what the child does. Children are started from the main thread only: the kernel takes the end of
the thread that started a child for the end of its parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from text_generation_cli.orphans import LAUNCHER_PID
from text_generation_cli.ready import GO_AHEAD_FD, READY_FD, parse_report

# A line longer than this arrives in pieces, so that output without line ends cannot fill the memory.
_MAX_LINE_BYTES = 1 << 20
_OUTPUT_TIMEOUT_S = 2.0


class Child:
    """A running program, started by the constructor in a process group of its own.

    Ctrl-C in the terminal therefore reaches only the launcher. `on_line(line, is_stderr)` is called by two threads, one
    for each stream, which read at the same time: a child that fills one pipe never waits for the other. Other threads
    call `on_change()` when it has become ready and when it has ended.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        on_line: Callable[[str, bool], None],
        on_change: Callable[[], None],
        *,
        private_files: bool = False,
        ahead: bool = False,
    ) -> None:
        """Start the program.

        Args:
            private_files: what it creates, sockets included, is closed to other users.
            ahead: what it needs is not there yet, and it waits for `go_ahead` before it takes it for granted.
        Raises:
            OSError: it could not be started.
        """
        self.facts: dict[str, object] | None = None  # what it said when it was ready; None before that
        self._exit_status: int | None = None
        self._on_change = on_change
        ready_pipe, reporting_end = os.pipe()
        child_ends = {READY_FD: reporting_end}
        self._go_ahead_pipe: int | None = None
        if ahead:
            child_ends[GO_AHEAD_FD], self._go_ahead_pipe = os.pipe()
        told = {name: str(descriptor) for name, descriptor in child_ends.items()}
        try:
            self._process = subprocess.Popen(
                arguments,
                env={**environment, LAUNCHER_PID: str(os.getpid()), **told},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=tuple(child_ends.values()),
                start_new_session=True,
                umask=0o077 if private_files else -1,
            )
        except OSError:
            os.close(ready_pipe)
            self.go_ahead()
            raise
        finally:
            for descriptor in child_ends.values():
                os.close(descriptor)
        self.started_s = time.monotonic()
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._threads = [
            threading.Thread(target=_pump, args=(self._process.stdout, False, on_line), daemon=True),
            threading.Thread(target=_pump, args=(self._process.stderr, True, on_line), daemon=True),
            threading.Thread(target=self._read_report, args=(os.fdopen(ready_pipe, "rb"),), daemon=True),
        ]
        for thread in (*self._threads, threading.Thread(target=self._watch, daemon=True)):
            thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        return self.facts is not None

    def go_ahead(self) -> None:
        """Tell a child that was started ahead of time that what it waits for is there."""
        if self._go_ahead_pipe is not None:
            os.close(self._go_ahead_pipe)
            self._go_ahead_pipe = None

    def poll(self) -> int | None:
        """The exit status, negative for a signal, or None while it runs. Whatever it left of its group is killed."""
        if self._exit_status is None:
            # While the leader is not reaped its id cannot be given to a stranger, so the group is safe to kill.
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            self._signal_group()
            self._exit_status = self._process.wait()
            self.go_ahead()  # nobody waits any more
            for thread in self._threads:
                thread.join(_OUTPUT_TIMEOUT_S)
        return self._exit_status

    def terminate(self) -> None:
        """Ask it to end."""
        if self.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and everything that it started, at once."""
        if self.poll() is None:
            self._signal_group()

    def _signal_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _read_report(self, pipe: IO[bytes]) -> None:
        with pipe:
            self.facts = parse_report(pipe.readline(_MAX_LINE_BYTES).decode("utf-8", "replace"))
        self._on_change()

    def _watch(self) -> None:
        with contextlib.suppress(ChildProcessError):  # `poll` was first
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._on_change()


def stop_all(children: Sequence[Child], grace_s: float, *, is_urgent: Callable[[], bool], poll_s: float) -> None:
    """Ask all children to end, and kill those that still run after `grace_s` or as soon as it is urgent."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + grace_s
    while any(child.poll() is None for child in children):
        if is_urgent() or time.monotonic() >= deadline:
            for child in children:
                child.kill()
        time.sleep(poll_s)


def _pump(stream: IO[bytes], is_stderr: bool, on_line: Callable[[str, bool], None]) -> None:
    with stream:
        while line := stream.readline(_MAX_LINE_BYTES):
            on_line(line.decode("utf-8", "replace").rstrip("\r\n"), is_stderr)
