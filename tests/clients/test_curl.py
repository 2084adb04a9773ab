"""The commands of TGI's documentation, typed as they stand there."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.expected import MAX_INPUT_TOKENS, Expected, user
from tests.support.servers import Server

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

PROMPT = "What is Deep Learning?"
JSON_HEADER = "-H 'Content-Type: application/json'"
BODY = """-d '{"inputs":"What is Deep Learning?","parameters":{"max_new_tokens":20}}'"""
STREAM_BODY = """-d '{"inputs":"What is Deep Learning?","stream":true,"parameters":{"max_new_tokens":20}}'"""

# Without the header, curl says that the body is a form.
with_and_without_header = pytest.mark.parametrize("header", [JSON_HEADER, ""], ids=["content-type", "no content-type"])


def curl(server: Server, command: str) -> subprocess.CompletedProcess[str]:
    """Run the command with the server's address for HOST."""
    arguments = shlex.split(command.replace("HOST", f"127.0.0.1:{server.port}"))
    assert arguments[0] == "curl"
    options = ["--silent", "--show-error", "--max-time", "60", "--noproxy", "*"]
    return subprocess.run(["curl", *options, *arguments[1:]], capture_output=True, text=True, check=True)


def events(output: str) -> list[dict[str, object]]:
    """As scripts take them apart: blocks between blank lines, each one line of data."""
    blocks = output.removesuffix("\n\n").split("\n\n")
    assert all(block.startswith("data:") and "\n" not in block for block in blocks)
    return [json.loads(block.removeprefix("data:")) for block in blocks]


@with_and_without_header
def test_generate(server: Server, expected: Expected, header: str) -> None:
    output = curl(server, f"curl HOST/generate -X POST {BODY} {header}").stdout
    assert json.loads(output) == {"generated_text": expected.greedy_text(PROMPT, 20)}


@with_and_without_header
@pytest.mark.parametrize(
    "command",
    [f"curl HOST/generate_stream -X POST {BODY}", f"curl HOST -X POST {STREAM_BODY}"],
    ids=["/generate_stream", "/"],
)
def test_streams(server: Server, expected: Expected, command: str, header: str) -> None:
    found = events(curl(server, f"{command} {header}").stdout)
    assert [event["generated_text"] for event in found] == [None] * 19 + [expected.greedy_text(PROMPT, 20)]


@with_and_without_header
def test_the_root_gives_a_list(server: Server, expected: Expected, header: str) -> None:
    output = curl(server, f"curl HOST -X POST {BODY} {header}").stdout
    assert json.loads(output) == [{"generated_text": expected.greedy_text(PROMPT, 20)}]


def test_a_body_over_a_megabyte_waits_for_leave_to_be_sent(server: Server, expected: Expected, tmp_path: Path) -> None:
    prompt = "There and back again. " * 55_000
    parameters = {"max_new_tokens": 5, "truncate": MAX_INPUT_TOKENS}
    done = post_file(server, tmp_path, {"inputs": prompt, "parameters": parameters})
    assert "> Expect: 100-continue" in done.stderr
    assert "< HTTP/1.1 100 Continue" in done.stderr
    ids = expected.witness.generate(expected.prompt_ids(prompt)[-MAX_INPUT_TOKENS:], 5)
    assert json.loads(done.stdout) == {"generated_text": expected.text(ids)}


def test_a_body_over_the_limit_is_refused_before_it_is_sent(server: Server, tmp_path: Path) -> None:
    done = post_file(server, tmp_path, {"inputs": "There and back again. " * 120_000})
    assert "> Expect: 100-continue" in done.stderr
    assert "100 Continue" not in done.stderr
    assert "< HTTP/1.1 413 " in done.stderr
    answer = json.loads(done.stdout)
    assert answer["error_type"] == "validation"
    assert "2000000 bytes" in answer["error"]


def post_file(server: Server, folder: Path, body: object) -> subprocess.CompletedProcess[str]:
    path = folder / "body.json"
    path.write_text(json.dumps(body))
    return curl(server, f"curl -v HOST/generate -X POST -d @{path} {JSON_HEADER}")


MESSAGES = '"messages":[{"role":"user","content":"What is Deep Learning?"}]'


@with_and_without_header
def test_a_chat(server: Server, expected: Expected, header: str) -> None:
    body = f"""-d '{{"model":"tgi",{MESSAGES},"stream":false,"temperature":0,"max_tokens":20}}'"""
    answer = json.loads(curl(server, f"curl HOST/v1/chat/completions -X POST {body} {header}").stdout)
    assert answer["choices"][0]["message"]["content"] == expected.chat_text(user(PROMPT), 20)


@with_and_without_header
def test_a_streamed_chat(server: Server, expected: Expected, header: str) -> None:
    body = f"""-d '{{"model":"tgi",{MESSAGES},"stream":true,"temperature":0,"max_tokens":20}}'"""
    output = curl(server, f"curl HOST/v1/chat/completions -X POST {body} {header}").stdout
    assert output.endswith("data: [DONE]\n\n")
    found: list[Any] = events(output.removesuffix("data: [DONE]\n\n"))
    text = "".join(event["choices"][0]["delta"]["content"] for event in found)
    assert text == expected.chat_text(user(PROMPT), 20)


def test_a_completion(server: Server, expected: Expected) -> None:
    body = """-d '{"model":"tgi","prompt":"What is Deep Learning?","temperature":0,"max_tokens":20}'"""
    answer = json.loads(curl(server, f"curl HOST/v1/completions -X POST {body} {JSON_HEADER}").stdout)
    assert answer["choices"][0]["text"] == expected.greedy_text(PROMPT, 20)


def test_a_key_in_a_header(server: Server) -> None:
    output = curl(server, "curl HOST/v1/models -H 'Authorization: Bearer any'").stdout
    assert [model["object"] for model in json.loads(output)["data"]] == ["model"]
