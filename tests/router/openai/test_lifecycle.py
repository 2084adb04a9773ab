"""Places, hang-ups, failures and stopping, on the OpenAI routes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.router.api.scripted import new_tokenizer
from tests.router.api.streams import open_request, wait_until
from tests.router.openai.asking import CHAT, COMPLETIONS, user
from tests.router.openai.scripted import new_shard, new_templates
from tests.support.router_server import RouterServer, router_server

LONG_CHAT = {"messages": user("long"), "temperature": 0, "max_tokens": 800}
LONG_COMPLETION = {"prompt": ["longer", "longer"], "temperature": 0, "max_tokens": 800}
VERTEX = {"instances": [{"inputs": "longer"}, {"inputs": "longer"}]}

Serve = Callable[..., Any]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    def start(**options: Any) -> Any:
        fail_at_step = options.pop("fail_at_step", None)
        shard = new_shard(tmp_path, step_s=0.01)
        shard.fail_at_step = fail_at_step
        return router_server(shard, new_tokenizer(), new_templates(), **options)

    return start


def is_idle(server: RouterServer) -> bool:
    stats = server.replica.stats()
    return stats.running == stats.waiting == 0


@pytest.mark.parametrize(
    ("path", "body", "num_sequences"),
    [
        (CHAT, LONG_CHAT, 1),
        (CHAT, {**LONG_CHAT, "stream": True}, 1),
        (CHAT, {**LONG_CHAT, "n": 2, "stream": True}, 2),
        (CHAT, {**LONG_CHAT, "n": 2}, 2),
        (COMPLETIONS, LONG_COMPLETION, 2),
        (COMPLETIONS, {**LONG_COMPLETION, "stream": True}, 2),
        ("/invocations", LONG_CHAT, 1),
        ("/vertex", VERTEX, 2),
    ],
)
def test_a_hang_up_gives_back_everything(serve: Serve, path: str, body: dict[str, Any], num_sequences: int) -> None:
    """G19."""
    with serve(max_concurrent_requests=num_sequences) as server, server.client() as client:
        connection = open_request(server.port, path, body)
        wait_until(lambda: server.replica.stats().running == num_sequences)
        connection.close()
        wait_until(lambda: is_idle(server))
        # All places are free again.
        several = {"messages": user("capital"), "max_tokens": 1, "n": num_sequences}
        assert client.post(CHAT, json=several).status_code == 200
        assert 'tgi_request_failure{err="dropped"} 1' in client.get("/metrics").text


def test_every_sequence_takes_a_place(serve: Serve) -> None:
    """G11."""
    with serve(max_concurrent_requests=2) as server, server.client() as client:
        too_many: list[tuple[str, dict[str, Any]]] = [
            (CHAT, {"messages": user("x"), "n": 3}),
            (COMPLETIONS, {"prompt": ["x", "y", "z"]}),
            (COMPLETIONS, {"prompt": "x", "best_of": 3}),
            (COMPLETIONS, {"prompt": ["x", "y"], "n": 2, "stream": True}),
            ("/vertex", {"instances": [{"inputs": "x"}] * 3}),
        ]
        for path, body in too_many:
            answer = client.post(path, json=body)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            assert answer.json() == {"error": "Model is overloaded", "error_type": "overloaded"}
        connection = open_request(server.port, CHAT, LONG_CHAT)
        wait_until(lambda: server.replica.stats().running == 1)
        assert client.post(CHAT, json={"messages": user("x"), "n": 2}).status_code == 429
        assert client.post(CHAT, json={"messages": user("capital"), "max_tokens": 1}).status_code == 200
        connection.close()


def test_one_prompt_that_fails_fails_the_request(serve: Serve) -> None:
    with serve() as server, server.client() as client:
        answer = client.post(COMPLETIONS, json={"prompt": ["longer", ""]})
        assert answer.status_code == 422
        wait_until(lambda: is_idle(server))


def test_a_failing_shard_is_424_or_the_last_event(serve: Serve) -> None:
    with serve(fail_at_step=30) as server, server.client() as client:
        plain = open_request(server.port, COMPLETIONS, LONG_COMPLETION)
        streamed = client.post(CHAT, json={**LONG_CHAT, "stream": True})
        assert streamed.status_code == 200
        *chunks, error, done, rest = streamed.content.split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b"")
        assert len(chunks) > 5
        content = json.loads(error.removeprefix(b"data: "))
        assert content["error_type"] == "generation"
        assert content["error"]["http_status_code"] == 424
        assert content["error"]["message"].startswith("Request failed during generation: Server error: ")
        answer = plain.recv(1 << 16)
        plain.close()
        assert answer.startswith(b"HTTP/1.1 424 ")
        for path, body in ((CHAT, LONG_CHAT), (COMPLETIONS, LONG_COMPLETION)):
            later = client.post(path, json={**body, "stream": True})
            assert (later.status_code, later.json()["error_type"]) == (424, "generation")


def test_a_stopping_server_takes_nothing_new(serve: Serve) -> None:
    """G39."""
    with serve() as server, server.client() as client:
        server.app.close()
        bodies: dict[str, dict[str, Any]] = {
            CHAT: {"messages": user("x")},
            COMPLETIONS: {"prompt": "x"},
            "/chat_tokenize": {"messages": user("x")},
            "/invocations": {"prompt": "x"},
            "/vertex": {"instances": [{"inputs": "x"}]},
        }
        for path, body in bodies.items():
            answer = client.post(path, json=body)
            assert answer.status_code == 503, path
            assert answer.json() == {"error": "Server is shutting down", "error_type": "overloaded"}


def test_requests_and_failures_are_counted_once(serve: Serve) -> None:
    with serve() as server, server.client() as client:
        assert client.post(CHAT, json={"messages": user("capital"), "max_tokens": 1}).status_code == 200
        assert client.post(CHAT, json={"messages": user("capital"), "max_tokens": 0}).status_code == 422
        assert client.post(CHAT, json={"messages": []}).status_code == 422
        assert client.post(COMPLETIONS, json={"prompt": ["x", "y"], "max_tokens": 1}).status_code == 200
        metrics = client.get("/metrics").text
        assert "tgi_request_count 4" in metrics
        assert "tgi_request_success 3" in metrics  # sequences
        assert 'tgi_request_failure{err="validation"} 2' in metrics


def test_an_api_key_is_needed(serve: Serve) -> None:
    """G45."""
    with serve(api_key="k") as server, server.client() as client:
        for path in (CHAT, COMPLETIONS, "/chat_tokenize", "/invocations", "/vertex"):
            answer = client.post(path, json={"messages": user("x")})
            assert answer.status_code == 401, path
        headers = {"authorization": "Bearer k"}
        body = {"messages": user("capital"), "max_tokens": 1}
        assert client.post(CHAT, json=body, headers=headers).status_code == 200
        assert client.get("/v1/models").status_code == 200


def test_a_client_of_another_origin_is_answered(serve: Serve) -> None:
    with serve() as server:
        answer = httpx.options(
            server.url + CHAT,
            headers={"origin": "http://x", "access-control-request-method": "POST"},
            trust_env=False,
        )
        assert answer.status_code == 200
