"""When bytes come and go: events leave one by one as tokens are made, and bodies may be as large as is allowed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.router.api.scripted import new_tokenizer
from tests.router.openai.asking import CHAT, COMPLETIONS, user
from tests.router.openai.scripted import new_shard, new_templates
from tests.support.router_server import router_server

STEP_S = 0.2
STREAMS: dict[str, dict[str, Any]] = {
    "/generate_stream": {"inputs": "capital", "parameters": {"max_new_tokens": 3}},
    "/": {"inputs": "capital", "parameters": {"max_new_tokens": 3}, "stream": True},
    CHAT: {"messages": user("capital"), "max_tokens": 3, "temperature": 0, "stream": True},
    COMPLETIONS: {"prompt": "capital", "max_tokens": 3, "temperature": 0, "stream": True},
}


@pytest.mark.parametrize("path", STREAMS)
def test_an_event_leaves_before_the_next_token_is_made(tmp_path: Path, path: str) -> None:
    """G20: and nothing on the way is told that it may hold events back."""
    shard = new_shard(tmp_path, step_s=STEP_S)
    with router_server(shard, new_tokenizer(), new_templates()) as server, server.client() as client:
        arrived_s: list[float] = []
        with client.stream("POST", path, json=STREAMS[path]) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    arrived_s.append(time.monotonic())
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in answer.headers
    assert len(arrived_s) == 3
    first, second, third = arrived_s
    assert second - first > STEP_S / 2
    assert third - second > STEP_S / 2


@pytest.mark.parametrize("path", ["/generate", CHAT, COMPLETIONS])
def test_a_raised_limit_lets_larger_bodies_in_and_others_are_served_meanwhile(tmp_path: Path, path: str) -> None:
    """G24: 3 MB of one letter are read, and refused for their number of tokens."""
    word = "a" * 3_000_000
    body: dict[str, Any] = {"inputs": word, "prompt": word, "messages": user(word), "max_tokens": 1}
    shard = new_shard(tmp_path)
    with (
        router_server(shard, new_tokenizer(), new_templates(), payload_limit=10_000_000) as server,
        server.client() as client,
        ThreadPoolExecutor() as threads,
    ):
        long = threads.submit(client.post, path, json=body)
        longest_s = 0.0
        while not long.done():
            began_s = time.monotonic()
            assert client.get("/health").status_code == 200
            longest_s = max(longest_s, time.monotonic() - began_s)
        assert longest_s < 1
        assert long.result().status_code == 422
        assert "Given: 30000" in long.result().json()["error"]
        refused = client.post(path, json={**body, "inputs": word * 2})
        assert (refused.status_code, refused.json()["error_type"]) == (413, "validation")
