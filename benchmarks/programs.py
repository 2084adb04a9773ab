"""Programs that are measured: started, frozen while others have the machine, thawed, and stopped with all children."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import psutil

from benchmarks.prompts import Prompt
from benchmarks.rates import Run
from benchmarks.report import NoPlace
from benchmarks.streams import LoadError, Target

ROOT = Path(__file__).parent.parent
_START_TIMEOUT_S = 400.0  # vLLM compiles for minutes the first time
_STOP_TIMEOUT_S = 20.0
_LOG_CHARACTERS = 2000


class Program:
    """A process with its children, and its log."""

    def __init__(self, name: str, command: Sequence[str], environ: Mapping[str, str], *, pipes: bool = False) -> None:
        """
        Args:
            environ: added to this process's own.
            pipes: stdin and stdout are lines of text, written and read by the owner; else stdout goes to the log.
        """
        self.name = name
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # open as long as this is
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else self._log,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environ},
            start_new_session=True,
        )

    def log_end(self) -> str:
        self._log.seek(0)
        return self._log.read()[-_LOG_CHARACTERS:]

    def freeze(self) -> None:
        """Stop it and its children where they are: a program that waits may still spin."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        self.thaw()
        processes = self._processes()
        self._signal(signal.SIGTERM, processes)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_TIMEOUT_S)
        for survivor in psutil.wait_procs(processes, timeout=3)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                survivor.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._log):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def cpu_s(self, part: str) -> float:
        """CPU seconds so far of those of its processes whose command line holds `part`."""
        times = [process.cpu_times() for process in self._processes() if part in " ".join(process.cmdline())]
        return sum(time.user + time.system for time in times)

    def _processes(self) -> list[psutil.Process]:
        try:
            own = psutil.Process(self.process.pid)
            return [own, *own.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _signal(self, number: signal.Signals, processes: Sequence[psutil.Process] | None = None) -> None:
        for process in self._processes() if processes is None else processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


class Server:
    """A program that answers streams over HTTP."""

    def __init__(self, program: Program, target: Target, health: str = "/health") -> None:
        self.program = program
        self.target = target
        self._health = target.url + health

    def wait_ready(self) -> None:
        """Raises LoadError with the end of its log."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not _answers(self._health):
            if self.program.process.poll() is not None or time.monotonic() > deadline_s:
                raise LoadError(f"{self.program.name} did not start:\n{self.program.log_end()}")
            time.sleep(0.2)

    def run(self, prompts: Sequence[Prompt], max_new_tokens: int) -> Run:
        return run_load(self.target, prompts, max_new_tokens)


class Worker:
    """A program that has no server of its own: one JSON order on a line of its stdin, one `Run` on a line of stdout."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def wait_ready(self) -> None:
        """Raises LoadError with the end of its log."""
        if self._read_line().strip() != "ready":
            raise LoadError(f"{self.program.name} did not load the model:\n{self.program.log_end()}")

    def run(self, prompts: Sequence[Prompt], max_new_tokens: int) -> Run:
        assert self.program.process.stdin
        order = {"prompt_ids": [prompt.ids for prompt in prompts], "max_new_tokens": max_new_tokens}
        try:
            self.program.process.stdin.write(json.dumps(order) + "\n")
            self.program.process.stdin.flush()
            return Run.from_json(self._read_line())
        except (BrokenPipeError, ValueError) as error:
            raise LoadError(f"{self.program.name} ended while it ran:\n{self.program.log_end()}") from error

    def _read_line(self) -> str:
        """The next line that is ours: libraries print to stdout too."""
        assert self.program.process.stdout
        for line in self.program.process.stdout:
            if line.startswith("> "):
                return line[2:]
        return ""


def run_load(target: Target, prompts: Sequence[Prompt], max_new_tokens: int) -> Run:
    """All prompts at once, by a load generator in a process of its own. Raises LoadError for any that failed."""
    order: dict[str, Any] = {
        "target": vars(target),
        "prompts": [prompt.text for prompt in prompts],
        "prompt_ids": [prompt.ids for prompt in prompts],
        "max_new_tokens": max_new_tokens,
    }
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
    run = Run.from_json(done.stdout)
    if run.errors:
        raise LoadError(f"{len(run.errors)} of {len(prompts)} streams failed: {run.errors[0]}")
    return run


def launch(name: str, model: Path, options: Sequence[str], environ: Mapping[str, str], folder: Path) -> Server:
    """Start our launcher as a user would; `folder` is for its sockets."""
    port = free_port()
    command = [sys.executable, "-m", "text_generation_launcher", "--model-id", str(model), "--port", str(port)]
    command += ["--hostname", "127.0.0.1", "--shard-uds-path", f"{folder}/{port}", *options]
    return Server(Program(name, command, environ), Target(f"http://127.0.0.1:{port}"))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run_benchmark(main: Callable[[Sequence[str]], int], *refusals: type[Exception]) -> NoReturn:
    """Be the program of a benchmark that starts others.

    SIGTERM ends it as Ctrl-C does, so that what it started is stopped; SIGINT in a shell's job too. What stands in its
    way is one line: LoadError, NoPlace and `refusals`.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)
    expected: tuple[type[Exception], ...] = (LoadError, NoPlace, *refusals)
    try:
        sys.exit(main(sys.argv[1:]))
    except expected as error:
        sys.exit(f"error: {error}")


@contextmanager
def stopping(program: Program) -> Iterator[Program]:
    try:
        yield program
    finally:
        program.stop()


def _exit(number: int, frame: object) -> None:
    sys.exit(128 + number)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
