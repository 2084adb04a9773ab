"""Traces as a collector receives them: a real gRPC server in the test, asked what arrived."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from tests.router.api.scripted import new_shard, new_tokenizer
from tests.support.router_server import router_server
from text_generation_router.otlp import Tracing

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"


@dataclass
class Span:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    begin_ns: int
    end_ns: int
    attributes: dict[str, str | int]
    is_error: bool


@dataclass
class Collector(TraceServiceServicer):
    spans: list[Span] = field(default_factory=list)
    resources: list[dict[str, str | int]] = field(default_factory=list)
    received: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    def Export(  # noqa: N802
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        for group in request.resource_spans:
            self.resources.append(attributes(group.resource.attributes))
            for scope in group.scope_spans:
                self.spans.extend(
                    Span(
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        attributes(span.attributes),
                        span.status.code == 2,
                    )
                    for span in scope.spans
                )
        self.received.set()
        return ExportTraceServiceResponse()


def attributes(pairs: Any) -> dict[str, str | int]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def collector() -> Iterator[Collector]:
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = Collector()
    add_TraceServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    servicer.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield servicer
    finally:
        server.stop(None).wait()


def traced(
    tmp_path: Path, requests: list[tuple[str, dict[str, Any], dict[str, str]]], scheme: str = "http://"
) -> Collector:
    """What a collector has after these requests (path, body, headers) and the server's end."""
    with collector() as found:
        tracing = Tracing(f"{scheme}127.0.0.1:{found.port}", "a service")
        with (
            router_server(new_shard(tmp_path), new_tokenizer(), wrap=tracing.trace) as server,
            server.client() as client,
        ):
            for path, body, headers in requests:
                client.post(path, json=body, headers=headers)
            client.get("/health")
        tracing.close()
        return found


def test_request_has_a_span_below_the_callers_and_its_parts_below_that(tmp_path: Path) -> None:
    body = {"inputs": "capital", "parameters": {"max_new_tokens": 3, "do_sample": True, "seed": 2**64 - 1}}
    before_ns = time.time_ns()
    found = traced(tmp_path, [("/generate", body, {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"})])
    after_ns = time.time_ns()
    assert {resource["service.name"] for resource in found.resources} == {"a service"}
    spans = {span.name: span for span in found.spans}
    assert spans.keys() == {"POST /generate", "validation", "queue", "inference"}
    request = spans.pop("POST /generate")
    assert (request.trace_id, request.parent_id) == (TRACE_ID, PARENT_ID)
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["url.path"] == "/generate"
    assert before_ns <= request.begin_ns < request.end_ns <= after_ns
    end_ns = request.begin_ns
    for name in ("validation", "queue", "inference"):
        span = spans[name]
        assert (span.trace_id, span.parent_id) == (TRACE_ID, request.span_id)
        # One after the other, without gaps, within the request; clocks differ by less than a millisecond.
        assert span.begin_ns >= end_ns - 1_000_000
        assert span.end_ns >= span.begin_ns
        end_ns = span.end_ns
    assert end_ns <= request.end_ns + 1_000_000
    for span in (request, *spans.values()):
        for name in ("total_time", "validation_time", "queue_time", "inference_time", "time_per_token"):
            assert str(span.attributes[name]).endswith("s")
        assert span.attributes["seed"] == str(2**64 - 1)
        assert (span.attributes["input_length"], span.attributes["generated_tokens"]) == (7, 3)
    assert not any(span.is_error for span in found.spans)


def test_streams_are_traced_to_their_end_and_new_traces_begin_without_a_caller(tmp_path: Path) -> None:
    body = {"inputs": "capital", "parameters": {"max_new_tokens": 3}}
    headers: dict[str, str] = {}
    found = traced(tmp_path, [("/generate_stream", body, headers), ("/generate_stream", body, headers)], scheme="")
    requests = [span for span in found.spans if span.name == "POST /generate_stream"]
    assert [span.parent_id for span in requests] == ["", ""]
    assert len({span.trace_id for span in requests}) == 2
    assert [span.name for span in found.spans].count("inference") == 2


def test_each_sequence_of_a_request_has_its_own_spans(tmp_path: Path) -> None:
    parameters = {"max_new_tokens": 2, "best_of": 2, "do_sample": True}
    found = traced(tmp_path, [("/generate", {"inputs": "x", "parameters": parameters}, {})])
    inferences = [span for span in found.spans if span.name == "inference"]
    assert len({span.attributes["seed"] for span in inferences}) == 2
    assert len({span.parent_id for span in inferences}) == 1


def test_caller_who_does_not_sample_is_not_traced(tmp_path: Path) -> None:
    found = traced(tmp_path, [("/generate", {"inputs": "x"}, {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-00"})])
    assert found.spans == []


def test_failure_is_named_and_no_text_is_sent(tmp_path: Path) -> None:
    marked = {"inputs": "zebra", "parameters": {"stop": ["zebra"], "temperature": -1}}
    found = traced(
        tmp_path, [("/generate", marked, {}), ("/generate", {"inputs": "zebra"}, {"traceparent": "nonsense"})]
    )
    failed, *_ = found.spans
    assert failed.attributes["error.type"] == "validation"
    assert failed.attributes["http.response.status_code"] == 422
    assert failed.is_error
    assert "zebra" not in json.dumps([span.attributes for span in found.spans])


def test_absent_collector_does_not_hold_up_requests_or_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with collector() as gone:
        port = gone.port
    tracing = Tracing(f"http://127.0.0.1:{port}", "a service")
    with router_server(new_shard(tmp_path), new_tokenizer(), wrap=tracing.trace) as server, server.client() as client:
        began_s = time.monotonic()
        answer: httpx.Response = client.post("/generate", json={"inputs": "x", "parameters": {"max_new_tokens": 1}})
        assert answer.status_code == 200
        assert time.monotonic() - began_s < 5
    began_s = time.monotonic()
    tracing.close()
    assert time.monotonic() - began_s < 15
    assert any(record.name.startswith("opentelemetry") for record in caplog.records)
