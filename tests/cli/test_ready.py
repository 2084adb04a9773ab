"""The tie between launcher and children: readiness on a pipe, and nothing without a launcher."""

from __future__ import annotations

import os

import pytest

from text_generation_cli.orphans import die_with_parent
from text_generation_cli.ready import GO_AHEAD_FD, READY_FD, parse_report, report_ready, take_go_ahead


def test_report_arrives_with_its_facts_and_closes_the_pipe() -> None:
    reading, writing = os.pipe()
    environ = {READY_FD: str(writing)}
    report_ready(environ, rank=1, url="http://x")
    with os.fdopen(reading) as pipe:
        assert parse_report(pipe.read()) == {"rank": 1, "url": "http://x"}
    assert environ == {}  # programs started from here must not report in this one's name
    report_ready(environ)


@pytest.mark.parametrize("line", ["", "ready", "[1]", '{"ready": false}', '{"rank": 1}'])
def test_other_lines_are_not_a_report(line: str) -> None:
    assert parse_report(line) is None


def test_the_go_ahead_is_taken_once_and_is_the_end_of_a_file() -> None:
    reading, writing = os.pipe()
    environ = {GO_AHEAD_FD: str(reading)}
    assert take_go_ahead(environ) == reading
    assert take_go_ahead(environ) is None
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b""


def test_process_without_a_launcher_is_left_alone() -> None:
    assert not die_with_parent({})
