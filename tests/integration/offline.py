"""A machine without a network, for the processes of one server: every attempt to leave it fails and is written down.

Two witnesses: a hook in every Python process, and a trap where the hub and every proxy are said to be, which native
clients would reach too.
"""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from types import TracebackType

_HOOK = '''"""Python imports this module by itself at start."""

import os
import sys

_LOG = os.environ["OFFLINE_LOG"]
_HERE = ("127.", "::1", "localhost", "0.0.0.0", "::")


def _note(line):
    with open(_LOG, "a") as log:
        log.write(line + "\\n")


def _watch(event, arguments):
    if event == "socket.connect":
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else ""
    elif event == "socket.getaddrinfo":
        host = arguments[0] or ""
    else:
        return
    host = host.decode() if isinstance(host, bytes) else str(host)
    if host and not host.startswith(_HERE) and host != __import__("socket").gethostname():
        _note(f"attempt {event} {host}")
        raise OSError(101, "Network is unreachable")


sys.addaudithook(_watch)
_note("watched " + " ".join(sys.orig_argv))
'''


class Offline:
    """A context manager. `environ` is what a launcher has to be started with."""

    def __init__(self, folder: Path) -> None:
        (folder / "sitecustomize.py").write_text(_HOOK)
        self._log = folder / "log"
        self._log.touch()
        self._trap = socket.create_server(("127.0.0.1", 0))
        self._num_trapped = 0
        address = f"http://127.0.0.1:{self._trap.getsockname()[1]}"
        proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"), address)
        self.environ = {
            "PYTHONPATH": str(folder),
            "OFFLINE_LOG": str(self._log),
            "HF_HUB_OFFLINE": "1",
            "HF_ENDPOINT": address,
            **proxies,
        }

    def __enter__(self) -> Offline:
        threading.Thread(target=self._count, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._trap.close()

    @property
    def attempts(self) -> list[str]:
        """Connections and look-ups that processes tried."""
        lines = self._log.read_text().splitlines()
        return [line for line in lines if line.startswith("attempt")] + ["the hub or a proxy"] * self._num_trapped

    @property
    def watched(self) -> str:
        """The command lines of all processes that had the hook."""
        return self._log.read_text()

    def _count(self) -> None:
        while True:
            try:
                connection, _ = self._trap.accept()
            except OSError:  # the trap was closed
                return
            self._num_trapped += 1
            connection.close()
