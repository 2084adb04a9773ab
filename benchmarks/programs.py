"""Starts and stops what is measured: a launcher with its children, the load generator, the peer."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.load import LoadError
from benchmarks.prompts import Prompt
from benchmarks.rates import Run

ROOT = Path(__file__).parent.parent
_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 30.0


@contextmanager
def serving(model: Path, launcher_options: Sequence[str]) -> Iterator[str]:
    """Start the launcher as a user would, and stop it at the end. Yields the address.

    Raises:
        LoadError: it ended or did not become healthy; with the end of its log.
    """
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
        port = _free_port()
        command = [sys.executable, "-m", "text_generation_launcher", "--model-id", str(model), "--port", str(port)]
        command += ["--shard-uds-path", f"{folder}/shard", *launcher_options]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            deadline_s = time.monotonic() + _START_TIMEOUT_S
            while not _is_healthy(url):
                if process.poll() is not None or time.monotonic() > deadline_s:
                    log.seek(0)
                    raise LoadError(f"the server did not start:\n{log.read()[-3000:]}")
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait(_STOP_TIMEOUT_S)


def run_load(url: str, prompts: Sequence[Prompt], max_new_tokens: int) -> Run:
    """One run of the load generator, in a process of its own. Raises LoadError with what it said."""
    order = {"url": url, "prompts": [prompt.text for prompt in prompts], "max_new_tokens": max_new_tokens}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load"],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if done.returncode != 0:
        raise LoadError(done.stderr.strip())
    return Run.from_json(done.stdout)


class Peer:
    """`transformers`, in a process that keeps its model between runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, prompts: Sequence[Prompt], max_new_tokens: int) -> Run:
        assert self._process.stdin
        assert self._process.stdout
        order = {"prompt_ids": [prompt.ids for prompt in prompts], "max_new_tokens": max_new_tokens}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise LoadError(f"transformers ended with status {self._process.wait()}, perhaps for want of memory")
        return Run.from_json(answer)


@contextmanager
def transformers_peer(model: Path) -> Iterator[Peer]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.transformers_peer", str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout
        if process.stdout.readline().strip() != "ready":
            raise LoadError("transformers did not load the model; try it alone: python -m benchmarks.transformers_peer")
        yield Peer(process)
    finally:
        process.kill()
        process.communicate()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
