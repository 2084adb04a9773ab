"""/info, /health, /metrics, /tokenize and the OpenAPI document."""

from __future__ import annotations

import re
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from text_generation_router.validation import SUPPORTED_PARAMETERS

from tests.support.router_server import RouterServer


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
        assert "/api-doc/openapi.json" in client.get("/docs").text
    assert document["paths"].keys() == {
        "/",
        "/generate",
        "/generate_stream",
        "/health",
        "/info",
        "/metrics",
        "/ping",
        "/tokenize",
    }
    names = {reference.removeprefix("#/components/schemas/") for reference in references(document)}
    assert {"GenerateRequest", "CompatGenerateRequest", "GenerateParameters", "ErrorResponse"} <= names
    assert names <= document["components"]["schemas"].keys()
    assert document["paths"].keys() & {"/", "/generate"}
    assert all(re.fullmatch(r"/[a-z0-9_/{}]*", path) for path in document["paths"])
