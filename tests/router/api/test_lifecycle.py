"""Full, hung up, failing and stopping: what happens to requests, and to what they hold."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.router.api.scripted import ANSWERS, new_shard, new_tokenizer
from tests.router.api.streams import open_request, wait_until
from tests.support.router_server import RouterServer, router_server

LONG: dict[str, Any] = {"inputs": "long", "parameters": {"max_new_tokens": 800}}


@contextmanager
def slow_server(folder: Path, **settings: Any) -> Iterator[RouterServer]:
    with router_server(new_shard(folder, step_s=0.01), new_tokenizer(), **settings) as server:
        yield server


def is_idle(server: RouterServer) -> bool:
    stats = server.replica.stats()
    return stats.running == stats.waiting == stats.blocks.owned == 0


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_a_hang_up_frees_everything_at_once(tmp_path: Path, path: str) -> None:
    """G19."""
    with slow_server(tmp_path, max_concurrent_requests=1) as server:
        connection = open_request(server.port, path, LONG)
        wait_until(lambda: server.replica.stats().running == 1)
        if path == "/generate_stream":
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        connection.close()
        wait_until(lambda: is_idle(server), timeout_s=2)
        with server.client() as client:
            assert (
                client.post("/generate", json={"inputs": "x", "parameters": {"max_new_tokens": 1}}).status_code == 200
            )
            assert 'tgi_request_failure{err="dropped"} 1' in client.get("/metrics").text


def test_a_stop_string_releases_the_sequence_although_the_client_is_still_there(tmp_path: Path) -> None:
    with slow_server(tmp_path) as server, server.client() as client:
        parameters = {"max_new_tokens": 800, "stop": ["aba"]}
        answer = client.post("/generate", json={"inputs": "long", "parameters": parameters})
        assert answer.json() == {"generated_text": "aba"}
        assert is_idle(server)


def test_a_full_server_answers_429_and_serves_again_when_it_is_not(tmp_path: Path) -> None:
    """G11."""
    with slow_server(tmp_path, max_concurrent_requests=2) as server, server.client() as client:
        connections = [open_request(server.port, "/generate_stream", LONG) for _ in range(2)]
        wait_until(lambda: server.replica.stats().running == 2)
        for path in ("/generate", "/generate_stream", "/"):
            # Even if it would be refused anyway ...
            answer = client.post(path, json={"inputs": ""})
            assert answer.status_code == 429
            assert answer.json() == {"error": "Model is overloaded", "error_type": "overloaded"}
            assert answer.headers["retry-after"] == "1"
        # ... unless for a reason that is looked at before.
        streamed = {"inputs": "x", "parameters": {"best_of": 2}}
        assert client.post("/generate_stream", json=streamed).status_code == 422
        plain = {"inputs": "x", "parameters": {"best_of": 9, "do_sample": True}}
        assert client.post("/generate", json=plain).status_code == 422
        assert client.get("/health").status_code == 200
        for connection in connections:
            connection.close()
        wait_until(lambda: is_idle(server))
        for _ in range(5):
            short = {"inputs": "x", "parameters": {"max_new_tokens": 2, "best_of": 2, "do_sample": True}}
            assert client.post("/generate", json=short).status_code == 200


def test_a_stopping_server_finishes_what_runs_and_refuses_the_rest(tmp_path: Path) -> None:
    """G39."""
    with slow_server(tmp_path) as server, server.client() as client:
        connection = open_request(
            server.port, "/generate", {"inputs": "long", "parameters": {"max_new_tokens": 100, "details": True}}
        )
        wait_until(lambda: server.replica.stats().running == 1)
        server.app.close()
        for path in ("/generate", "/generate_stream", "/", "/tokenize"):
            answer = client.post(path, json={"inputs": "x"})
            assert answer.status_code == 503
            assert answer.json() == {"error": "Server is shutting down", "error_type": "overloaded"}
        assert client.get("/health").status_code == 503
        assert client.get("/metrics").status_code == 200
        answer_bytes = b""
        while b"\r\n\r\n" not in answer_bytes or not answer_bytes.endswith(b"}}"):
            answer_bytes += connection.recv(1 << 16)
        connection.close()
        assert json.loads(answer_bytes.split(b"\r\n\r\n")[1])["generated_text"] == ANSWERS["long"][:100]
        server.run(server.app.wait_idle)


def test_a_failing_shard_is_424_or_the_last_event(tmp_path: Path) -> None:
    shard = new_shard(tmp_path, step_s=0.01, fail_at_step=30)
    with router_server(shard, new_tokenizer()) as server, server.client() as client:
        plain = open_request(server.port, "/generate", LONG)
        streamed = client.post("/generate_stream", json=LONG)
        assert streamed.status_code == 200
        *tokens, error, rest = streamed.content.split(b"\n\n")
        assert rest == b""
        assert len(tokens) > 5
        assert json.loads(error.removeprefix(b"data: "))["error_type"] == "generation"
        answer = plain.recv(1 << 16)
        plain.close()
        assert answer.startswith(b"HTTP/1.1 424 ")
        message = json.loads(answer.split(b"\r\n\r\n")[1])["error"]
        assert message.startswith("Request failed during generation: Server error: ")
        assert "scripted failure" in message
        # Nothing was sent yet: a real status, for streams too.
        later = client.post("/generate_stream", json=LONG)
        assert later.status_code == 424
        assert later.json()["error_type"] == "generation"
        unhealthy = client.get("/health")
        assert unhealthy.status_code == 503
        assert unhealthy.json() == {"error": "unhealthy", "error_type": "healthcheck"}
        assert 'tgi_request_failure{err="generation"} 3' in client.get("/metrics").text


def test_one_line_is_logged_for_an_answer_and_it_does_not_quote_the_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with router_server(new_shard(tmp_path), new_tokenizer()) as server, server.client() as client:
        client.post("/generate", json={"inputs": "capital", "parameters": {"do_sample": True, "seed": 3}})
    (record,) = [record for record in caplog.records if record.name.startswith("text_generation_router")]
    assert (record.levelname, record.getMessage()) == ("INFO", "Success")
    facts = record.__dict__
    assert facts["seed"] == 3
    for name in ("total_time", "validation_time", "queue_time", "inference_time", "time_per_token"):
        assert facts[name].endswith("s")
        assert float(facts[name][:-1]) >= 0
    assert "capital" not in str(facts)
    assert "Paris" not in str(facts)
