"""Log lines of the three programs, as text or JSON, and the levels that LOG_LEVEL asks for.

Everything goes to standard output, one line (or one JSON object) for each record. Call `set_up` once, in `main`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from text_generation_cli.options import TRUE_WORDS

# Loggers named so follow LOG_LEVEL; those of other libraries speak from WARNING on.
OUR_PACKAGES = (
    "text_generation_cli",
    "text_generation_kernels",
    "text_generation_launcher",
    "text_generation_router",
    "text_generation_server",
)

_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "success": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.ERROR,
    "off": logging.CRITICAL + 1,
}
_SPAN = "span_name"
# What every record has; other attributes came with `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", _SPAN}
_COLOURS = {"DEBUG": "34", "INFO": "32", "WARN": "33", "ERROR": "31"}


def level_by_name(name: str) -> int | None:
    """The level that a word such as "warn" or "SUCCESS" stands for, or None."""
    return _LEVELS.get(name.strip().lower())


def parse_level(expression: str, package: str) -> int:
    """The level that a LOG_LEVEL such as "debug" or "info,text_generation_router=debug" means for one of our packages.

    A part that names the package wins over a bare level; whatever cannot be understood is ignored.
    """
    bare = ours = None
    for part in expression.split(","):
        target, equals, word = part.rpartition("=")
        level = level_by_name(word)
        if level is None:
            continue
        if not equals:
            bare = level
        elif target.strip().split("::")[0].split(".")[0].replace("-", "_") == package:
            ours = level
    if ours is not None:
        return ours
    return logging.INFO if bare is None else bare


def in_span(span: str, /, **values: object) -> dict[str, object]:
    """The `extra` of a log call that names the part of the program that speaks, besides values.

    Everything in a call's `extra` is written after the message, or as fields of the JSON.
    """
    return {_SPAN: span, **values}


class Console(logging.StreamHandler[TextIO]):
    """The handler that writes records; whole lines of another process may be written between them."""

    def write_line(self, line: str) -> None:
        self.acquire()
        try:
            self.stream.write(line + self.terminator)
            self.flush()
        except OSError:  # the reader has left; the process that wrote the line must still be drained
            return
        finally:
            self.release()


def set_up(
    package: str, level: int, *, json_output: bool, environ: Mapping[str, str], stream: TextIO | None = None
) -> Console:
    """Send the log of this process to `stream` (standard output) in the form that belongs to `package`."""
    stream = stream or sys.stdout
    console = Console(stream)
    colour = stream.isatty() and environ.get("LOG_COLORIZE", "").lower() not in TRUE_WORDS  # as in TGI, 1 is off
    console.setFormatter(_JSON_FORMATTERS[package]() if json_output else TextFormatter(colour=colour))
    root = logging.getLogger()
    root.handlers[:] = [console]
    root.setLevel(logging.WARNING)
    for name in OUR_PACKAGES:
        logging.getLogger(name).setLevel(level)
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # a reader who left (`| head`) must not end the server
    return console


class _Formatter(logging.Formatter):
    def message(self, record: logging.LogRecord) -> str:
        """The message, and below it the traceback if there is one."""
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        return text


class TextFormatter(_Formatter):
    """`2026-01-08T10:00:00.123456Z  INFO shard-manager: text_generation_launcher: Starting shard rank=0`."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        level = _level_name(record)
        shown = f"\x1b[{_COLOURS[level]}m{level:>5}\x1b[0m" if self._colour else f"{level:>5}"
        span = f"{_span(record)}: " if _span(record) else ""
        values = "".join(f" {name}={_show(value)}" for name, value in _values(record).items())
        return f"{_timestamp(record)} {shown} {span}{_target(record)}: {self.message(record)}{values}"


class LauncherJsonFormatter(_Formatter):
    """tracing's JSON: fields below `fields`, the part of the program in `span` and `spans`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "timestamp": _timestamp(record),
            "level": _level_name(record),
            "fields": {"message": self.message(record), **_values(record)},
            "target": _target(record),
        }
        if _span(record):
            line["span"] = {"name": _span(record)}
            line["spans"] = [line["span"]]
        return _to_json(line)


class RouterJsonFormatter(_Formatter):
    """tracing's flattened JSON: fields beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            **_values(record),
            "timestamp": _timestamp(record),
            "level": _level_name(record),
            "message": self.message(record),
            "target": _target(record),
            "filename": record.pathname,
            "line_number": record.lineno,
        }
        if _span(record):
            line["span"] = {"name": _span(record)}
            line["spans"] = [line["span"]]
        return _to_json(line)


class ShardJsonFormatter(_Formatter):
    """`{"text": ..., "record": {"level": {"name": ...}, ...}}`, loguru's shape, which the launcher reads."""

    def format(self, record: logging.LogRecord) -> str:
        values = "".join(f" {name}={_show(value)}" for name, value in _values(record).items())
        message = self.message(record) + values
        level = {"name": "WARNING" if _level_name(record) == "WARN" else _level_name(record), "no": record.levelno}
        time_stamp = {"repr": _timestamp(record), "timestamp": record.created}
        return _to_json(
            {
                "text": message,
                "record": {"level": level, "message": message, "name": record.name, "time": time_stamp},
            }
        )


_JSON_FORMATTERS: dict[str, type[_Formatter]] = {
    "text_generation_launcher": LauncherJsonFormatter,
    "text_generation_router": RouterJsonFormatter,
    "text_generation_server": ShardJsonFormatter,
}


def _timestamp(record: logging.LogRecord) -> str:
    seconds, microseconds = divmod(round(record.created * 1e6), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{microseconds:06d}Z"


def _level_name(record: logging.LogRecord) -> str:
    if record.levelno >= logging.ERROR:
        return "ERROR"
    if record.levelno >= logging.WARNING:
        return "WARN"
    return "INFO" if record.levelno >= logging.INFO else "DEBUG"


def _target(record: logging.LogRecord) -> str:
    return record.name.replace(".", "::")


def _span(record: logging.LogRecord) -> str:
    return str(getattr(record, _SPAN, ""))


def _values(record: logging.LogRecord) -> Mapping[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _show(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


def _to_json(line: Mapping[str, object]) -> str:
    return json.dumps(line, ensure_ascii=False, default=str)
