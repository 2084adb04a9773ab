"""What `main` is in router and server alike: settings, log, the tie to the launcher, an end without a traceback."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from text_generation_cli import logs
from text_generation_cli.options import Values, parse
from text_generation_cli.orphans import die_with_parent

S = TypeVar("S")


def start(
    program: str, package: str, settings: type[S], argv: Sequence[str], *, description: str = ""
) -> tuple[S, Values]:
    """Tie this process to its launcher, read its options, set up its log, and say what there is to say about options.

    Args:
        program: what the user typed, e.g. "text-generation-server serve"; for usage and messages.
        package: our package whose form of log lines is used, e.g. "text_generation_server".
        settings: the class of the program's options. If it has `logger_level`, that wins over LOG_LEVEL when given.

    A bad command line ends the process with exit status 2.
    """
    launched = die_with_parent()
    values = parse(program, settings, argv, os.environ, description)
    expression = os.environ.get("LOG_LEVEL", "info")
    if "logger_level" in values.given():
        expression = str(values.get("logger_level"))
    logs.set_up(
        package,
        logs.parse_level(expression, package),
        json_output=bool(values.get("json_output")),
        environ=os.environ,
    )
    logger = logging.getLogger(package)
    for line in values.warnings:
        logger.warning("%s", line)
    if not launched:  # else the launcher has said it
        for line in values.without_effect():
            logger.info("%s", line)
    return values.build(settings), values


def run(package: str, work: Callable[[], int]) -> int:
    """Do a program's work. Returns: its exit status.

    An exception that nobody expected is one line in its log, with the traceback at level DEBUG, and status 1.
    """
    try:
        return work()
    except Exception as error:
        logger = logging.getLogger(package)
        logger.debug("it ended by an exception", exc_info=error)
        logger.error(
            "%s; LOG_LEVEL=debug shows where. Check the installation, and report it if that is sound", describe(error)
        )
        return 1


def describe(error: BaseException) -> str:
    """An exception in one line, much as a traceback ends."""
    name, lines = type(error).__name__, str(error).strip().splitlines()
    return f"{name}: {lines[0]}" if lines else name
