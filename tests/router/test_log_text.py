"""The router as a process, at its most talkative: what clients write and read is in no log, unless one switch is on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.router.api.streams import open_request, wait_until
from tests.support.servers import free_port
from tests.support.tokenizers import byte_level_tokenizer

MARK = "zebrafish"
KEY = "k3y-of-the-test"


@dataclass
class RouterProcess:
    process: subprocess.Popen[bytes]
    port: int
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")


@contextmanager
def router_process(folder: Path, *arguments: str) -> Iterator[RouterProcess]:
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    prefix, port, log_path = folder / "s", free_port(), folder / "log"
    environ = {**os.environ, "LOG_LEVEL": "debug", "API_KEY": KEY}
    shard = subprocess.Popen(
        [sys.executable, "-m", "tests.support.scripted_shard", "--uds-path", str(prefix), "--step-s", "0.005"]
    )
    with log_path.open("wb") as log:
        router = subprocess.Popen(
            [
                *(sys.executable, "-m", "text_generation_router", "--tokenizer-name", str(folder)),
                *("--master-shard-uds-path", f"{prefix}-0", "--hostname", "127.0.0.1", "--port", str(port)),
                *arguments,
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environ,
        )
    running = RouterProcess(router, port, log_path)
    try:
        wait_until(lambda: "Serving" in running.log, timeout_s=60)
        yield running
    finally:
        for process in (router, shard):
            process.send_signal(signal.SIGTERM)
        for process in (router, shard):
            process.wait(30)


def ask_everything(port: int) -> list[str]:
    """Requests of all kinds and fates, each with the mark in it. Returns: the texts that were generated."""
    texts = []
    bodies: list[dict[str, Any]] = [
        {"inputs": MARK, "parameters": {"max_new_tokens": 12}},
        {"inputs": MARK, "parameters": {"max_new_tokens": 12, "do_sample": True, "details": True, "stop": [MARK]}},
        {"inputs": MARK, "parameters": {"temperature": -1}},
        {"inputs": MARK, "parameters": {"truncate": MARK}},
        {"inputs": [MARK]},
        {"inputs": MARK * 10_000},
        {"inputs": MARK, "parameters": {"adapter_id": MARK}},
        {"inputs": MARK, "parameters": {"grammar": {"type": "regex", "value": f"({MARK}"}}},
        {"messages": [{"role": MARK, "content": MARK}], "model": MARK, "max_tokens": 12},
        {"prompt": MARK, "max_tokens": 12, "user": MARK},
        {MARK: MARK},
    ]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
        key = {"authorization": f"Bearer {KEY}"}
        document = client.get("/api-doc/openapi.json").json()
        for path in [path for path, item in document["paths"].items() if "post" in item]:
            for body in bodies:
                answer = client.post(path, json=body, headers=key)
                if answer.status_code == 200 and path == "/generate":
                    texts.append(answer.json()["generated_text"])
            client.post(path, content=f'{{"inputs": "{MARK}', headers=key)
            client.post(path, json=bodies[0], headers={"authorization": f"Bearer {MARK}"})
        client.post(f"/{MARK}", json=bodies[0], headers=key)
        client.get("/", params={"q": MARK})
    long = {"inputs": MARK, "parameters": {"max_new_tokens": 500}}
    hung_up = open_request(port, "/generate_stream", long)
    hung_up.close()
    return texts


def test_no_text_and_no_key_is_logged(tmp_path: Path) -> None:
    """G45."""
    with router_process(tmp_path) as router:
        texts = ask_everything(router.port)
    assert router.process.returncode == 0
    assert len(texts) == 2
    assert "Success" in router.log
    for text in (MARK, KEY, json.dumps(texts[0])[1:-1], texts[0]):
        assert text not in router.log


@pytest.mark.parametrize("form", ["text", "json"])
def test_facts_of_an_answer_are_logged_in_both_forms_and_text_where_wanted(tmp_path: Path, form: str) -> None:
    arguments = ["--log-prompts", *(["--json-output"] if form == "json" else [])]
    with router_process(tmp_path, *arguments) as router:
        body = {"inputs": MARK, "parameters": {"max_new_tokens": 4, "do_sample": True, "seed": 2**64 - 1}}
        httpx.post(
            f"http://127.0.0.1:{router.port}/generate",
            json=body,
            headers={"authorization": f"Bearer {KEY}"},
            timeout=30,
        ).raise_for_status()
    lines = router.log.splitlines()
    (success,) = [line for line in lines if "Success" in line]
    names = [
        "total_time",
        "validation_time",
        "queue_time",
        "inference_time",
        "time_per_token",
        "seed",
        "prompt",
        "answer",
    ]
    if form == "json":
        content = json.loads(success)
        assert content["message"] == "Success"
        assert [name for name in content if name in names] == names
        assert (content["prompt"], content["seed"]) == (MARK, 2**64 - 1)
        assert all(json.loads(line) for line in lines)
    else:
        places = [success.index(f" {name}=") for name in names]
        assert places == sorted(places)
        assert f'prompt="{MARK}"' in success
    assert any("WARN" in line and "--log-prompts is on" in line for line in lines)
    assert KEY not in router.log
