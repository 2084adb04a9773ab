"""What children print: which of it becomes log lines of the launcher, at which level, and what explains a failure."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Iterable

from text_generation_cli import logs

_TAIL_LINES = 40
_MOST_ERROR_LINES = 500  # a traceback is longer than a tail is readable
_TRACEBACK = "Traceback (most recent call last)"

logger = logging.getLogger("text_generation_launcher")


class ServerOutput:
    """Output of `text-generation-server`: log lines as JSON objects on stdout, anything on both streams.

    Log lines are repeated at their level. Other lines are kept for the report of a failure, and shown at level DEBUG.
    """

    def __init__(self, span: str, said: dict[str, ServerOutput] | None = None, **values: object) -> None:
        """`said` is shared by all ranks: who said which error first. What one has said, others need not repeat."""
        self._extra = logs.in_span(span, **values)
        self._said = {} if said is None else said
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)  # of both streams
        self._errors: deque[str] = deque(maxlen=_MOST_ERROR_LINES)  # of stderr, where a traceback is in one piece
        self._lock = threading.Lock()
        self._is_consequence = False
        self.has_explained = False  # an error of its own is in the log
        self._shown = ""  # that error's text

    def take(self, line: str, is_stderr: bool) -> None:
        """One line that the child printed."""
        record = _parse_record(line)
        with self._lock:
            if record is not None:
                self._repeat(*record)
            elif line.strip():
                self._tail.append(line)
                if is_stderr:
                    self._errors.append(line)
                self._take_other(line, is_stderr)

    def expect_errors(self) -> None:
        """From now on errors are consequences of a failure elsewhere, and not worth an ERROR line."""
        with self._lock:
            self._is_consequence = True

    def unexplained(self) -> str:
        """What it printed last and was not shown yet: what ended it if that is known, else its last lines; or ""."""
        with self._lock:
            exception = _last_exception(self._errors)
            if exception is not None:
                return "" if exception in self._shown else f"{exception}; LOG_LEVEL=debug shows where it happened"
            return "" if self.has_explained else "\n".join(self._tail)

    def _take_other(self, line: str, is_stderr: bool) -> None:
        logger.debug("%s", line, extra=self._extra)

    def _repeat(self, level: int, text: str) -> None:
        if level >= logging.ERROR and self._is_consequence:
            level = logging.DEBUG
        elif level >= logging.ERROR:
            self.has_explained = True
            self._shown += text
            if self._said.setdefault(text, self) is not self:
                level = logging.DEBUG
        logger.log(level, "%s", text, extra=self._extra)


class DownloadOutput(ServerOutput):
    """Output of the download step. Its stderr is the progress, its last line of stdout names the model's folder."""

    def __init__(self) -> None:
        super().__init__("download")
        self.result: dict[str, object] = {}

    def _take_other(self, line: str, is_stderr: bool) -> None:
        result = _parse_object(line)
        if not is_stderr and result is not None and "model_folder" in result:
            self.result = result
            return
        is_progress = is_stderr and not any(_TRACEBACK in earlier for earlier in self._errors)
        logger.log(logging.INFO if is_progress else logging.DEBUG, "%s", line, extra=self._extra)

    def _repeat(self, level: int, text: str) -> None:
        super()._repeat(level, f"Download encountered an error: {text}" if level >= logging.ERROR else text)


class RouterOutput:
    """Output of the router, which writes log lines in the launcher's own form on stdout: repeated unchanged.

    What comes on stderr is no log line: it is kept for the report of a failure, and shown at level DEBUG. With JSON
    lines asked for, a line that is not a JSON object is wrapped into one.
    """

    def __init__(self, console: logs.Console, *, json_output: bool) -> None:
        self._console = console
        self._json_output = json_output
        self._errors = ServerOutput("webserver")

    def take(self, line: str, is_stderr: bool) -> None:
        """One line that the router printed."""
        if is_stderr:
            self._errors.take(line, is_stderr)
        elif not self._json_output or _parse_object(line) is not None:
            self._console.write_line(line)
        elif line.strip():
            logger.info("%s", line, extra=logs.in_span("webserver"))

    def unexplained(self) -> str:
        """What it printed on stderr last: what ended it if that is known, else its last lines; "" if nothing."""
        return self._errors.unexplained()


def _last_exception(lines: Iterable[str]) -> str | None:
    """The line of the last traceback that names the exception; None if there is none."""
    found, is_frame = None, False
    for line in lines:
        if _TRACEBACK in line:
            is_frame = True
        elif is_frame and not line.startswith(" "):
            found, is_frame = line.strip(), False
    return found


def _parse_object(line: str) -> dict[str, object] | None:
    if not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _parse_record(line: str) -> tuple[int, str] | None:
    """(level, text) of a log line in loguru's shape."""
    value = _parse_object(line)
    if value is None or not isinstance(value.get("text"), str):
        return None
    record = value.get("record")
    level = record.get("level") if isinstance(record, dict) else None
    name = level.get("name") if isinstance(level, dict) else None
    return logs.level_by_name(str(name)) or logging.INFO, str(value["text"]).rstrip()
