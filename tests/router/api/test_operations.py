"""/info, /health, /metrics, /tokenize and the OpenAPI document."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.router.api.scripted import new_shard, new_tokenizer
from tests.router.api.streams import wait_until
from tests.support.router_server import RouterServer, router_server
from text_generation_router.__main__ import main
from text_generation_router.validation import SUPPORTED_PARAMETERS


def test_info_has_the_fields_of_both_generations(client: httpx.Client) -> None:
    info = client.get("/info").json()
    assert info["model_id"] == "tiny"
    assert info["max_input_tokens"] == info["max_input_length"] == 512
    assert info["max_total_tokens"] == 1024
    assert info["max_batch_total_tokens"] == 256 * 16
    assert info["model_dtype"] == "torch.float32"
    assert info["model_device_type"] == "cpu"
    assert info["supported_parameters"] == list(SUPPORTED_PARAMETERS)
    # llama-index turns features on by comparing this.
    assert tuple(map(int, info["version"].split("."))) >= (2, 1, 0)


def test_health_is_empty_and_ok(client: httpx.Client) -> None:
    for path in ("/health", "/ping", "/"):
        answer = client.get(path)
        assert (answer.status_code, answer.content) == (200, b"")


def samples(client: httpx.Client) -> dict[str, float]:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    pairs: dict[str, float] = {}
    for line in answer.text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            pairs[name] = float(value)
    assert list(text_string_to_metric_families(answer.text))
    return pairs


def test_requests_are_counted_and_gauges_return_to_zero(client: httpx.Client) -> None:
    """G44."""
    before = samples(client)
    assert client.post("/generate", json={"inputs": "capital", "parameters": {"max_new_tokens": 3}}).status_code == 200
    assert client.post("/generate", json={"inputs": ""}).status_code == 422
    after = samples(client)

    def difference(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    assert difference("tgi_request_count") == 2
    assert difference("tgi_request_success") == 1
    assert difference('tgi_request_failure{err="validation"}') == 1
    for name in ("duration", "validation_duration", "queue_duration", "inference_duration", "input_length"):
        assert difference(f"tgi_request_{name}_count") == 1
    assert difference("tgi_request_generated_tokens_sum") == 3
    assert difference("tgi_request_max_new_tokens_sum") == 3
    assert difference("tgi_request_input_length_sum") == 7
    assert after["tgi_queue_size"] == after["tgi_batch_current_size"] == 0
    assert after["tgi_kv_blocks_free"] + after["tgi_kv_blocks_cached"] == after["tgi_kv_blocks"]


def test_metrics_do_not_grow_with_the_number_of_requests(client: httpx.Client) -> None:
    client.post("/generate", json={"inputs": "capital"})
    before = samples(client).keys()
    for length in range(1, 6):
        client.post("/generate", json={"inputs": "x" * length, "parameters": {"max_new_tokens": length}})
    assert samples(client).keys() == before


def test_tokens_have_byte_places(client: httpx.Client) -> None:
    answer = client.post("/tokenize", json={"inputs": "é the", "parameters": {"truncate": 1}})
    places = [(token["text"], token["start"], token["stop"]) for token in answer.json()]
    assert places == [("é", 0, 2), (" the", 2, 6)]
    assert client.post("/tokenize", json={"inputs": ""}).json() == []


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(references, node.values()))
    return set().union(*map(references, node)) if isinstance(node, list) else set()


def test_the_openapi_document_describes_every_route_and_has_every_schema_it_names(server: RouterServer) -> None:
    with server.client() as client:
        document = client.get("/api-doc/openapi.json").json()
    assert document["paths"].keys() >= {
        "/",
        "/generate",
        "/generate_stream",
        "/health",
        "/info",
        "/metrics",
        "/ping",
        "/tokenize",
        "/v1/chat/completions",
    }
    names = {reference.removeprefix("#/components/schemas/") for reference in references(document)}
    assert {"GenerateRequest", "CompatGenerateRequest", "GenerateParameters", "ErrorResponse"} <= names
    assert names <= document["components"]["schemas"].keys()
    assert document["paths"].keys() & {"/", "/generate"}
    assert all(re.fullmatch(r"/[a-z0-9_/{}]*", path) for path in document["paths"])


class Links(HTMLParser):
    """What a page links to or loads, and its anchors."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "href" and tag == "a":
                self.targets.add(value or "")
            elif name in {"href", "src"}:
                self.loaded.add(value or "")
            elif name == "id":
                self.anchors.add(value or "")


def test_docs_name_every_route_and_load_nothing(client: httpx.Client) -> None:
    document = client.get("/api-doc/openapi.json").json()
    answer = client.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    for path in document["paths"]:
        assert f"<code>{path}</code>" in answer.text
    links = Links(answer.text)
    assert links.loaded == set()
    assert "<script" not in answer.text
    assert links.anchors == document["components"]["schemas"].keys()
    assert links.targets - {f"#{name}" for name in links.anchors} == {"api-doc/openapi.json"}


def test_schema_can_be_printed_without_a_model(client: httpx.Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["print-schema"]) == 0
    assert json.loads(capsys.readouterr().out) == client.get("/api-doc/openapi.json").json()


def test_compute_type_can_be_named(tmp_path: Path) -> None:
    with (
        router_server(new_shard(tmp_path), new_tokenizer(), compute_type="2-mine") as server,
        server.client() as client,
    ):
        answer = client.post("/generate", json={"inputs": "x", "parameters": {"max_new_tokens": 1}})
        assert answer.headers["x-compute-type"] == "2-mine"


def test_health_answers_at_once_when_full_and_says_no_when_a_shard_is_stuck(tmp_path: Path) -> None:
    """G44."""
    shard = new_shard(tmp_path, step_s=0.02)
    with (
        router_server(shard, new_tokenizer(), max_concurrent_requests=40) as server,
        server.client(limits=httpx.Limits(max_connections=100)) as client,
        ThreadPoolExecutor(40) as threads,
    ):
        long = {"inputs": "long", "parameters": {"max_new_tokens": 60}}
        answers = [threads.submit(client.post, "/generate", json=long) for _ in range(40)]
        wait_until(lambda: server.replica.stats().running > 0)
        while not all(answer.done() for answer in answers):
            began_s = time.monotonic()
            assert client.get("/health").status_code == 200
            assert time.monotonic() - began_s < 1
            time.sleep(0.02)
        assert {answer.result().status_code for answer in answers} == {200}

        shard.step_s = 600.0  # the next step never ends
        stuck = threads.submit(client.post, "/generate", json=long)
        wait_until(lambda: server.replica.stats().running == 1)
        server.replica.step_deadline_s = 0.05
        wait_until(lambda: client.get("/health").status_code == 503)
        server.run(shard.stop)
        assert stuck.result().status_code == 424
        assert client.get("/health").status_code == 503
