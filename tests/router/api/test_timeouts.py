"""Requests that take too long: their error, plain and streamed, and that nothing of them stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.router.api.scripted import new_shard, new_tokenizer
from tests.router.api.streams import open_request, wait_until
from tests.support.router_server import router_server

LONG: dict[str, Any] = {"inputs": "long", "parameters": {"max_new_tokens": 800}}
SHORT: dict[str, Any] = {"inputs": "x", "parameters": {"max_new_tokens": 1}}


def test_request_that_takes_too_long_is_504_or_the_last_event(tmp_path: Path) -> None:
    shard = new_shard(tmp_path, step_s=0.01)
    with router_server(shard, new_tokenizer(), request_timeout_s=0.4) as server, server.client() as client:
        assert client.post("/generate", json=SHORT).status_code == 200
        error = {
            "error": "Request timed out: not finished within 0.4 s, see --request-timeout-s",
            "error_type": "timeout",
        }
        plain = client.post("/generate", json=LONG)
        assert (plain.status_code, plain.json()) == (504, error)
        streamed = client.post("/generate_stream", json=LONG)
        assert streamed.status_code == 200
        *tokens, last, rest = streamed.text.split("\n\n")
        assert len(tokens) > 3
        assert json.loads(last.removeprefix("data: ")) == error
        assert rest == ""
        stats = server.replica.stats()
        assert (stats.running, stats.waiting, stats.blocks.owned) == (0, 0, 0)
        assert 'tgi_request_failure{err="timeout"} 2' in client.get("/metrics").text


def test_request_that_waits_too_long_is_429_and_may_be_sent_again(tmp_path: Path) -> None:
    shard = new_shard(tmp_path, step_s=0.01)
    shard.num_blocks = 64  # one of these prompts fits, and not two
    first, second = ({"inputs": text * 800, "parameters": {"max_new_tokens": 200}} for text in "ab")
    with router_server(shard, new_tokenizer(), queue_timeout_s=0.1) as server, server.client() as client:
        connection = open_request(server.port, "/generate", first)
        wait_until(lambda: server.replica.stats().running == 1)
        for path in ("/generate", "/generate_stream"):
            answer = client.post(path, json=second)
            assert answer.status_code == 429
            assert answer.json() == {
                "error": "Model is overloaded: not started within 0.1 s, see --queue-timeout-s",
                "error_type": "overloaded",
            }
            assert answer.headers["retry-after"] == "1"
        assert 'tgi_request_failure{err="queue_timeout"} 2' in client.get("/metrics").text
        connection.close()
        wait_until(lambda: server.replica.stats().blocks.owned == 0)
        assert client.post("/generate", json=SHORT).status_code == 200
