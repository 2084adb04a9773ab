"""Log lines: levels from any LOG_LEVEL, and the shapes that TGI's readers expect."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from text_generation_cli import logs


@pytest.mark.parametrize(
    ("expression", "launcher", "router"),
    [
        ("", logging.INFO, logging.INFO),
        ("warn", logging.WARNING, logging.WARNING),
        ("DEBUG", logging.DEBUG, logging.DEBUG),
        ("trace", logging.DEBUG, logging.DEBUG),
        ("info,text_generation_router=debug", logging.INFO, logging.DEBUG),
        ("text_generation_router=debug", logging.INFO, logging.DEBUG),
        ("text-generation-router::server=error,warn", logging.WARNING, logging.ERROR),
        ("hyper=trace", logging.INFO, logging.INFO),
        ("nonsense", logging.INFO, logging.INFO),
        ("text_generation_launcher=nonsense", logging.INFO, logging.INFO),
        ("text_generation_launcher[span{field=1}]=debug,=,,==", logging.INFO, logging.INFO),
    ],
)
def test_level_of_a_filter_expression(expression: str, launcher: int, router: int) -> None:
    assert logs.parse_level(expression, "text_generation_launcher") == launcher
    assert logs.parse_level(expression, "text_generation_router") == router


@settings(deadline=None)
@given(st.text())
def test_no_filter_expression_raises(expression: str) -> None:
    assert isinstance(logs.parse_level(expression, "text_generation_router"), int)


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raises = root.handlers[:], root.level, logging.raiseExceptions
    levels = {name: logging.getLogger(name).level for name in logs.OUR_PACKAGES}
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raises
    for name, old in levels.items():
        logging.getLogger(name).setLevel(old)


def lines_of(package: str, *, json_output: bool, level: int = logging.INFO) -> list[str]:
    """What four log calls of a module in `package` write."""
    stream = io.StringIO()
    logs.set_up(package, level, json_output=json_output, environ={}, stream=stream)
    logger = logging.getLogger(f"{package}.part")
    logger.debug("hidden")
    logger.info("Starting %s", "shard", extra=logs.in_span("shard-manager", rank=0, kind='a "b"'))
    try:
        raise ValueError("no\nway")
    except ValueError:
        logger.exception("failed")
    logging.getLogger("someone.else").info("hidden")
    logging.getLogger("someone.else").warning("careful")
    return stream.getvalue().splitlines()


@pytest.mark.usefixtures("restored_logging")
def test_text_lines() -> None:
    first, *_, last = lines_of("text_generation_launcher", json_output=False)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z  INFO shard-manager: text_generation_launcher::part: "
        r'Starting shard rank=0 kind="a \\"b\\""',
        first,
    )
    assert last.endswith("  WARN someone::else: careful")


def parsed(package: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines_of(package, json_output=True)]


@pytest.mark.usefixtures("restored_logging")
def test_launcher_json_has_fields_below_fields() -> None:
    first, failure, foreign = parsed("text_generation_launcher")
    assert first["level"] == "INFO"
    assert first["fields"] == {"message": "Starting shard", "rank": 0, "kind": 'a "b"'}
    assert first["target"] == "text_generation_launcher::part"
    assert first["span"] == {"name": "shard-manager"}
    assert first["spans"] == [{"name": "shard-manager"}]
    assert failure["level"] == "ERROR"
    assert "ValueError: no\nway" in failure["fields"]["message"]
    assert foreign["level"] == "WARN"


@pytest.mark.usefixtures("restored_logging")
def test_router_json_is_flat() -> None:
    first, *_ = parsed("text_generation_router")
    assert first["message"] == "Starting shard"
    assert first["rank"] == 0
    assert first["filename"].endswith("test_logs.py")
    assert first["line_number"] > 0
    assert first["target"] == "text_generation_router::part"


@pytest.mark.usefixtures("restored_logging")
def test_shard_json_has_the_shape_of_loguru() -> None:
    first, failure, foreign = parsed("text_generation_server")
    assert first["text"] == 'Starting shard rank=0 kind="a \\"b\\""'
    assert first["record"]["level"]["name"] == "INFO"
    assert failure["record"]["level"]["name"] == "ERROR"
    assert "Traceback" in failure["text"]
    assert foreign["record"]["level"]["name"] == "WARNING"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("restored_logging")
@pytest.mark.parametrize(
    ("environ", "coloured"), [({}, True), ({"LOG_COLORIZE": "0"}, True), ({"LOG_COLORIZE": "1"}, False)]
)
def test_colours_are_for_terminals_and_log_colorize_turns_them_off(environ: dict[str, str], coloured: bool) -> None:
    stream = Terminal()
    logs.set_up("text_generation_router", logging.INFO, json_output=False, environ=environ, stream=stream)
    logging.getLogger("text_generation_router").info("hello")
    assert ("\x1b[32m" in stream.getvalue()) is coloured


@pytest.mark.usefixtures("restored_logging")
def test_a_reader_who_left_does_not_end_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    console = logs.set_up("text_generation_launcher", logging.INFO, json_output=False, environ={}, stream=Closed())
    logging.getLogger("text_generation_launcher").info("hello")
    console.write_line("a line of the router")
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("restored_logging")
def test_standard_output_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    console = logs.set_up("text_generation_launcher", logging.INFO, json_output=False, environ={})
    assert console.stream is sys.stdout
    console.write_line("as it is")
    assert capsys.readouterr().out == "as it is\n"
