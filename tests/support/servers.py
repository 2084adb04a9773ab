"""A whole server as its users start it: the launcher as a process, spoken to over HTTP only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

START_TIMEOUT_S = 120.0
# Answers are compared with transformers to 1e-4, which keys and values in bfloat16 are too coarse for.
_ENVIRON = {"OMP_NUM_THREADS": "1", "KV_CACHE_DTYPE": "float32"}
STOP_TIMEOUT_S = 30.0
# Options under which answers stay short, and one request for many choices finds the server full.
SHORT_ANSWERS = (
    *("--max-total-tokens", "48"),
    *("--max-input-tokens", "40"),
    *("--max-concurrent-requests", "16"),
)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class Server:
    """A running launcher with its children."""

    process: subprocess.Popen[bytes]
    port: int
    log_path: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def router(self) -> psutil.Process:
        return next(child for child in self.children() if "text_generation_router" in " ".join(child.cmdline()))

    def shards(self) -> list[psutil.Process]:
        """In the order in which they were started, which is by rank."""
        found = [child for child in self.children() if "text_generation_server" in " ".join(child.cmdline())]
        return sorted(found, key=lambda child: child.pid)

    def generate(self, inputs: str, **parameters: Any) -> dict[str, Any]:
        """POST /generate; raises for an error status."""
        response = httpx.post(
            f"{self.url}/generate", json={"inputs": inputs, "parameters": parameters}, timeout=START_TIMEOUT_S
        )
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        return answer

    def metric(self, name: str) -> float:
        """A series without labels from /metrics; 0 if it was never touched."""
        for line in httpx.get(f"{self.url}/metrics", timeout=10).text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        return 0.0

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Signal the launcher and wait for its end. Returns its exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout_s)


def launcher_command(*arguments: str, python: Path | None = None) -> list[str]:
    return [str(python or sys.executable), "-m", "text_generation_launcher", *arguments]


@contextmanager
def start_launcher(
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    port: int | None = None,
    cwd: Path | None = None,
    default_sockets: bool = False,
    python: Path | None = None,
) -> Iterator[Server]:
    """Start `text-generation-launcher` without waiting; everything it started is gone when the block is left.

    Args:
        default_sockets: the launcher chooses the paths of its sockets itself; else they lie in a folder of their own.
        python: the interpreter that it runs on; None: that of the tests.
    """
    port = port or free_port()
    defaults = dict(_ENVIRON)
    if "npu" in arguments:  # which keeps keys and values as it has activations
        del defaults["KV_CACHE_DTYPE"]
    with tempfile.TemporaryDirectory(prefix="tgs-") as folder:
        log_path = Path(folder) / "log"
        sockets = [] if default_sockets else ["--shard-uds-path", str(Path(folder) / "shard")]
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                launcher_command("--port", str(port), *sockets, *arguments, python=python),
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **defaults, **(environ or {})},
                cwd=cwd,
            )
        server = Server(process, port, log_path)
        try:
            yield server
        finally:
            with_children = [psutil.Process(process.pid), *server.children()] if process.poll() is None else []
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            for survivor in psutil.wait_procs(with_children, timeout=10)[1]:
                survivor.kill()


@contextmanager
def serving(
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    port: int | None = None,
    cwd: Path | None = None,
) -> Iterator[Server]:
    """The same, and wait until /health answers 200. Fails with the log if the launcher ends before."""
    with start_launcher(*arguments, environ=environ, port=port, cwd=cwd) as server:
        wait_healthy(server)
        yield server


def wait_healthy(server: Server, timeout_s: float = START_TIMEOUT_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if server.process.poll() is not None:
            raise AssertionError(f"the launcher ended with status {server.process.returncode}:\n{server.log}")
        try:
            if httpx.get(f"{server.url}/health", timeout=10).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(f"the server was not healthy within {timeout_s:g} s:\n{server.log}")
