"""The native generating routes: /generate, /generate_stream, and / which is either."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from text_generation_router.admission import Gate
from text_generation_router.api.answers import JsonResponse, generate_body, timing_headers
from text_generation_router.api.bodies import read_body
from text_generation_router.api.disconnect import until_disconnect
from text_generation_router.api.events import EventStream, token_event
from text_generation_router.api.openapi import request_body, responses
from text_generation_router.api.schema import (
    CompatGenerateRequest,
    GenerateRequest,
    GenerateResponse,
    StreamResponse,
)
from text_generation_router.compat import Compat
from text_generation_router.errors import IncompleteGeneration, IncompleteStream, RequestError
from text_generation_router.generation import Answer, Generator, Incomplete
from text_generation_router.metrics import Metrics
from text_generation_router.tracing import current_trace
from text_generation_router.validation import Validator


@dataclass(frozen=True, slots=True)
class GenerationService:
    """What the generating routes share."""

    gate: Gate
    validator: Validator
    generator: Generator
    metrics: Metrics
    payload_limit: int  # bytes
    compute_type: str
    compat: Compat

    async def generate(self, body: GenerateRequest) -> list[Answer]:
        """The answer, then the others of a best_of. Raises RequestError."""
        arrived_s = time.monotonic()
        parameters = self.compat.without_prefill(self.compat.parameters(body.parameters))
        num_sequences = parameters.best_of or 1
        with self.counted():
            self.gate.check_open()
            self.validator.check_before_admission(parameters, stream=False)
            with self.gate.enter(num_sequences):
                valid = await self.validator.validate(body.inputs, parameters)
                try:
                    if num_sequences == 1:
                        return [await self.generator.generate(valid, arrived_s)]
                    return await self.generator.generate_best_of(valid, num_sequences, arrived_s)
                except Incomplete:
                    raise IncompleteGeneration from None

    async def events(self, body: GenerateRequest, *, prompt: str = "") -> AsyncGenerator[bytes, None]:
        """One event a token. Raises RequestError.

        Args:
            prompt: put before the generated text.
        """
        arrived_s = time.monotonic()
        parameters = self.compat.parameters(body.parameters)
        details, prefix = bool(parameters.details), self.compat.event_prefix
        index = 0
        with self.counted():
            self.gate.check_open()
            self.validator.check_before_admission(parameters, stream=True)
            with self.gate.enter():
                valid = await self.validator.validate(body.inputs, parameters)
                try:
                    async with aclosing(self.generator.stream(valid, arrived_s)) as pieces:
                        async for piece in pieces:
                            index += 1
                            yield token_event(index, piece, details=details, prompt=prompt, prefix=prefix)
                except Incomplete:
                    raise IncompleteStream from None

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a request, and its failure."""
        self.metrics.request_count.add()
        with self.failures_counted():
            yield

    @contextmanager
    def failures_counted(self) -> Iterator[None]:
        """Of a request that is counted: it fails, or nobody waits for it any more."""
        try:
            yield
        except RequestError as error:
            self._count_failure(error.failure)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            self._count_failure("dropped")
            raise

    def _count_failure(self, failure: str) -> None:
        self.metrics.request_failure.add(failure)
        trace = current_trace.get()
        if trace is not None:
            trace.fail(failure)


def add_generate_routes(
    app: FastAPI, service: GenerationService
) -> Callable[[Request, CompatGenerateRequest], Awaitable[Response]]:
    """Returns: what answers the body of /, for routes that take it among others."""
    compat = service.compat

    async def answer(request: Request, body: GenerateRequest, prompt: str) -> tuple[dict[str, Any], dict[str, str]]:
        answers = await until_disconnect(request.receive, service.generate(body))
        timings = timing_headers(answers[:1], compute_time_in_ms=compat.compute_time_in_ms)
        parameters = compat.parameters(body.parameters)
        return generate_body(answers, parameters, prompt), {**common_headers(body), **timings}

    def common_headers(body: GenerateRequest) -> dict[str, str]:
        return {"x-compute-type": service.compute_type, "x-compute-characters": str(len(body.inputs))}

    def event_stream(body: GenerateRequest, prompt: str) -> Response:
        return EventStream(
            service.events(body, prompt=prompt),
            common_headers(body),
            event_prefix=compat.event_prefix,
            errors_in_streams=compat.errors_in_streams,
        )

    @app.post(
        "/generate",
        summary="Generate tokens",
        openapi_extra=request_body(GenerateRequest),
        responses=responses(GenerateResponse, 413, 422, 424, 429, 500, 503),
    )
    async def generate(request: Request) -> Response:
        body = await read_body(request, GenerateRequest, service.payload_limit)
        content, headers = await answer(request, body, _shown_prompt(body, by_default=False))
        return JsonResponse(content, headers=headers)

    @app.post(
        "/generate_stream",
        summary="Generate a stream of tokens, one event each",
        openapi_extra=request_body(GenerateRequest),
        responses=responses(None, 413, 422, 424, 429, 500, 503, event_models=[StreamResponse]),
    )
    async def generate_stream(request: Request) -> Response:
        body = await read_body(request, GenerateRequest, service.payload_limit)
        return event_stream(body, _shown_prompt(body, by_default=False))

    @app.post(
        "/",
        summary="Generate tokens, as a list of one answer, or as a stream if `stream` is true",
        openapi_extra=request_body(CompatGenerateRequest),
        responses=responses(list[GenerateResponse], 413, 422, 424, 429, 500, 503, event_models=[StreamResponse]),
    )
    async def compat_generate(request: Request) -> Response:
        return await answer_compat(request, await read_body(request, CompatGenerateRequest, service.payload_limit))

    async def answer_compat(request: Request, body: CompatGenerateRequest) -> Response:
        prompt = _shown_prompt(body, by_default=compat.full_text_by_default)
        if body.stream:
            return event_stream(body, prompt)
        content, headers = await answer(request, body, prompt)
        return JsonResponse([content], headers=headers)

    return answer_compat


def _shown_prompt(body: GenerateRequest, *, by_default: bool) -> str:
    """What stands before the generated text."""
    given = None if body.parameters is None else body.parameters.return_full_text
    return body.inputs if (by_default if given is None else given) else ""
