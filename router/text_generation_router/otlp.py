"""Sends one trace a request to an OpenTelemetry collector. Imported only when --otlp-endpoint is given.

A trace has a span for the HTTP request, below the caller's if it sent `traceparent`, and for each sequence one for its
validation, its time in the queue and its inference. They are made when the sequence has ended, from the moments that
are noted anyway: a token costs nothing more. No global provider is set, so that nobody else's spans are sent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from text_generation_cli import __version__
from text_generation_router.tracing import current_trace

_EXPORT_TIMEOUT_S = 5  # of one batch, attempts counted together; so also the longest that stopping waits
_PROPAGATOR = TraceContextTextMapPropagator()
_PROPAGATED = (b"traceparent", b"tracestate")


class Tracing:
    def __init__(self, endpoint: str, service_name: str) -> None:
        """`endpoint`: e.g. "http://localhost:4317"; with https:// the connection is encrypted."""
        resource = Resource.create({"service.name": service_name, "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(
            endpoint=endpoint, insecure=not endpoint.startswith("https://"), timeout=_EXPORT_TIMEOUT_S
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("text_generation_router", __version__)

    def trace(self, app: ASGIApp) -> ASGIApp:
        """The application, with a trace for each POST."""
        return _TracedApp(app, self._tracer)

    def close(self) -> None:
        """Send what is left. Blocks for a few seconds if the collector does not answer."""
        self._provider.shutdown()


class _Trace:
    """A RequestTrace whose spans go to OpenTelemetry."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self._context = set_span_in_context(span)
        self._epoch_ns = time.time_ns() - time.monotonic_ns()

    def add_sequence(self, spans: Sequence[tuple[str, float, float]], facts: Mapping[str, str | int | None]) -> None:
        attributes = {name: value for name, value in facts.items() if value is not None}
        # As in TGI they are the request's; of several sequences the last one's stay there, and each keeps its own.
        self._span.set_attributes(attributes)
        for name, begin_s, end_s in spans:
            span = self._tracer.start_span(name, self._context, attributes=attributes, start_time=self._epoch(begin_s))
            span.end(self._epoch(end_s))

    def fail(self, error_type: str) -> None:
        self._span.set_attribute("error.type", error_type)
        self._span.set_status(StatusCode.ERROR)

    def _epoch(self, moment_s: float) -> int:
        return self._epoch_ns + int(moment_s * 1e9)


class _TracedApp:
    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        carrier = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _PROPAGATED}
        span = self._tracer.start_span(
            f"POST {scope['path']}",
            _PROPAGATOR.extract(carrier),
            SpanKind.SERVER,
            {"http.request.method": "POST", "url.path": scope["path"], "url.scheme": scope["scheme"]},
        )

        async def send_noting_status(message: Message) -> None:
            if message["type"] == "http.response.start":
                span.set_attribute("http.response.status_code", message["status"])
                if message["status"] >= 500:
                    span.set_status(StatusCode.ERROR)
            await send(message)

        token = current_trace.set(_Trace(self._tracer, span))
        try:
            await self._app(scope, receive, send_noting_status)
        finally:
            current_trace.reset(token)
            span.end()
