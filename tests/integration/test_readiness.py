"""What a load balancer sees: nothing before a request would be served, and then the truth."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.support.asking import ask, client_of, prompt_of
from tests.support.servers import START_TIMEOUT_S, start_launcher


def test_health_from_the_start_through_full_and_busy_to_the_loss_of_a_shard(llama: Path) -> None:
    """G44."""
    limits = ("--max-concurrent-requests", "3", "--max-batch-prefill-tokens", "64")
    with start_launcher("--model-id", str(llama), *limits) as server, client_of(server) as client:
        # The port is closed until the first answer, which is 200; and then a request is served.
        deadline_s = time.monotonic() + START_TIMEOUT_S
        for path in ("/metrics", "/health"):
            while True:
                assert time.monotonic() < deadline_s, server.log
                try:
                    answer = client.get(path)
                except httpx.ConnectError:
                    time.sleep(0.02)
                    continue
                break
            assert answer.status_code == 200, path
        assert ask(client, "x", max_new_tokens=1).ids

        # Full, and computing prompts in many small steps.
        long: dict[str, Any] = {"inputs": prompt_of(1500), "parameters": {"max_new_tokens": 200}}
        with ThreadPoolExecutor(3) as pool:
            running = [pool.submit(client.post, "/generate", json=long) for _ in range(3)]
            while server.metric("tgi_batch_current_size") < 3:
                assert time.monotonic() < deadline_s
            assert client.post("/generate", json=long).status_code == 429
            while not all(request.done() for request in running):
                began_s = time.monotonic()
                assert client.get("/health").status_code == 200
                assert time.monotonic() - began_s < 1
                time.sleep(0.05)
            assert [request.result().status_code for request in running] == [200] * 3

        assert server.metric("tgi_queue_size") == server.metric("tgi_batch_current_size") == 0
        names = series(client)
        for length in range(1, 20):
            ask(client, prompt_of(length), max_new_tokens=length)
        assert series(client) == names

        server.shards()[0].kill()
        wait_until_unwell(client)


def series(client: httpx.Client) -> set[str]:
    lines = client.get("/metrics").text.splitlines()
    return {line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")}


def wait_until_unwell(client: httpx.Client) -> None:
    """503, or nobody there any more; and never well again."""
    deadline_s = time.monotonic() + 10
    while True:
        try:
            if client.get("/health").status_code == 503:
                return
        except httpx.TransportError:
            return
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
