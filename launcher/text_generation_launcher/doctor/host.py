"""Everything that the doctor touches outside its own process: files, commands, package metadata, a child that imports.

Knows nothing about Ascend. Tests give it a root folder, an environment and a folder of packages of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import IO

from text_generation_cli.orphans import LAUNCHER_PID

_MAX_TEXT_BYTES = 1 << 20
_TAIL_LINES = 5
_IMPORT_MODULE = "text_generation_launcher.doctor.import_child"


@dataclass(frozen=True)
class CommandResult:
    """How a command ended. `error` is one line if it could not be run at all or did not end in time."""

    status: int = -1  # negative: a signal, or it did not run
    stdout: str = ""
    stderr: str = ""
    error: str = ""

    @property
    def succeeded(self) -> bool:
        return not self.error and self.status == 0

    @property
    def last_words(self) -> str:
        """The last line it printed, for a message."""
        lines = [line.strip() for line in f"{self.stdout}\n{self.stderr}".splitlines() if line.strip()]
        return self.error or (lines[-1] if lines else f"exit status {self.status}")


@dataclass(frozen=True)
class FileOwner:
    """Who may open a device file."""

    mode: int  # permission bits
    user_id: int
    group_id: int


@dataclass(frozen=True)
class Host:
    """The machine as this process sees it."""

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    root: Path = Path("/")  # where its files are
    search_path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))  # where its packages are
    user_id: int = field(default_factory=os.geteuid)
    group_ids: frozenset[int] = field(default_factory=lambda: frozenset({os.getegid(), *os.getgroups()}))
    cores: frozenset[int] = field(default_factory=lambda: frozenset(os.sched_getaffinity(0)))

    def path(self, name: str) -> Path:
        """Where the file with this absolute name is."""
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str | None:
        """A file's beginning, None if it cannot be read."""
        try:
            with self.path(name).open("rb") as file:
                return file.read(_MAX_TEXT_BYTES).decode("utf-8", "replace")
        except OSError:
            return None

    def exists(self, name: str) -> bool:
        try:
            return self.path(name).exists()
        except OSError:
            return False

    def names(self, folder: str) -> tuple[str, ...]:
        """What lies in a folder, sorted; () if it cannot be listed."""
        try:
            return tuple(sorted(path.name for path in self.path(folder).iterdir()))
        except OSError:
            return ()

    def owner(self, name: str) -> FileOwner | None:
        try:
            status = self.path(name).stat()
        except OSError:
            return None
        return FileOwner(status.st_mode & 0o777, status.st_uid, status.st_gid)

    def may_open(self, owner: FileOwner) -> bool:
        """Whether this process may read and write a file of this owner, by its permission bits."""
        if self.user_id == 0:
            return True
        if owner.user_id == self.user_id:
            return owner.mode & 0o600 == 0o600
        if owner.group_id in self.group_ids:
            return owner.mode & 0o060 == 0o060
        return owner.mode & 0o006 == 0o006

    def find_command(self, name: str, folders: Iterable[str] = ()) -> str | None:
        """The path of a program, on PATH or in one of these folders of the host."""
        places = [self.environ.get("PATH", os.defpath), *(str(self.path(folder)) for folder in folders)]
        return shutil.which(name, path=os.pathsep.join(places))

    def run(self, arguments: list[str], timeout_s: float) -> CommandResult:
        """Run a command to its end, without input; what it started is killed if it takes too long."""
        try:
            process = subprocess.Popen(
                arguments,
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return CommandResult(error=f"{arguments[0]} cannot be started: {error.strerror}")
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            return CommandResult(error=f"{' '.join(arguments)} did not end in {timeout_s:g} s")
        return CommandResult(process.returncode, stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace"))

    def version(self, package: str) -> str | None:
        """The version that a package's metadata states, None if it is not installed."""
        found = self._distribution(package)
        return None if found is None else found.version

    def requirements(self, package: str) -> tuple[str, ...]:
        """What a package's metadata says that it needs."""
        found = self._distribution(package)
        return () if found is None else tuple(found.requires or ())

    @contextlib.contextmanager
    def importing(self, modules: Iterable[str]) -> Iterator[ImportChild]:
        """A process that imports torch, and torch_npu if it is among `modules`; killed at the end if it still runs."""
        # Files and not pipes: nobody reads while it runs, and what it had said is there after it was killed.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", _IMPORT_MODULE, *modules],
                env={
                    **self.environ,
                    # Without it a bare `import torch` already fails where torch_npu cannot load.
                    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
                    "PYTHONSAFEPATH": "1",
                    "OMP_NUM_THREADS": "1",
                    LAUNCHER_PID: str(os.getpid()),
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
            try:
                yield ImportChild(process, output, errors)
            finally:
                _kill_group(process)

    def _distribution(self, package: str) -> metadata.Distribution | None:
        found = metadata.Distribution.discover(name=package, path=list(self.search_path))
        return next(iter(found), None)


class ImportChild:
    """A process that imports what may crash, hang or take its process along, and says how far it came."""

    def __init__(self, process: subprocess.Popen[bytes], output: IO[bytes], errors: IO[bytes]) -> None:
        self._process, self._output, self._errors = process, output, errors
        self._started_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def has_ended(self, wait_s: float = 0.0) -> bool:
        try:
            self._process.wait(max(wait_s, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def result(self) -> tuple[list[dict[str, object]], CommandResult]:
        """What it reported, one record a stage, and how it ended; it is killed if it still runs."""
        seconds = self.elapsed_s
        error = "" if self.has_ended() else f"it did not end in {seconds:.0f} s"
        _kill_group(self._process)
        stdout, stderr = _content(self._output), _content(self._errors)
        return _records(stdout), CommandResult(self._process.returncode, "", _tail(stderr), error)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_MAX_TEXT_BYTES).decode("utf-8", "replace")


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_TAIL_LINES:])


def _records(text: str) -> list[dict[str, object]]:
    """Lines that are JSON objects; a line that a killed process did not finish is none."""
    records = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records
