"""The native generating routes: /generate, /generate_stream, and / which is either."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
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
from text_generation_router.errors import IncompleteGeneration, IncompleteStream, RequestError
from text_generation_router.generation import Answer, Generator, Incomplete
from text_generation_router.metrics import Metrics
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

    async def generate(self, body: GenerateRequest) -> list[Answer]:
        """The answer, then the others of a best_of. Raises RequestError."""
        arrived_s = time.monotonic()
        parameters = body.given_parameters()
        num_sequences = parameters.best_of or 1
        with self._counted():
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

    async def events(self, body: GenerateRequest) -> AsyncGenerator[bytes, None]:
        """One event a token. Raises RequestError."""
        arrived_s = time.monotonic()
        parameters = body.given_parameters()
        details, prompt = bool(parameters.details), _shown_prompt(body)
        index = 0
        with self._counted():
            self.gate.check_open()
            self.validator.check_before_admission(parameters, stream=True)
            with self.gate.enter():
                valid = await self.validator.validate(body.inputs, parameters)
                try:
                    async with aclosing(self.generator.stream(valid, arrived_s)) as pieces:
                        async for piece in pieces:
                            index += 1
                            yield token_event(index, piece, details=details, prompt=prompt)
                except Incomplete:
                    raise IncompleteStream from None

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a request, and its failure if it fails or nobody waits for it any more."""
        self.metrics.request_count.add()
        try:
            yield
        except RequestError as error:
            self.metrics.request_failure.add(error.failure)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            self.metrics.request_failure.add("dropped")
            raise


def add_generate_routes(app: FastAPI, service: GenerationService) -> None:
    async def answer(request: Request, body: GenerateRequest) -> tuple[dict[str, Any], dict[str, str]]:
        answers = await until_disconnect(request.receive, service.generate(body))
        headers = {**common_headers(body), **timing_headers(answers[0])}
        return generate_body(answers, body.given_parameters(), _shown_prompt(body)), headers

    def common_headers(body: GenerateRequest) -> dict[str, str]:
        return {"x-compute-type": service.compute_type, "x-compute-characters": str(len(body.inputs))}

    def event_stream(body: GenerateRequest) -> Response:
        return EventStream(service.events(body), common_headers(body))

    @app.post(
        "/generate",
        summary="Generate tokens",
        openapi_extra=request_body(GenerateRequest),
        responses=responses(GenerateResponse, 413, 422, 424, 429, 500, 503),
    )
    async def generate(request: Request) -> Response:
        content, headers = await answer(request, await read_body(request, GenerateRequest, service.payload_limit))
        return JsonResponse(content, headers=headers)

    @app.post(
        "/generate_stream",
        summary="Generate a stream of tokens, one event each",
        openapi_extra=request_body(GenerateRequest),
        responses=responses(StreamResponse, 413, 422, 424, 429, 500, 503, events=True),
    )
    async def generate_stream(request: Request) -> Response:
        return event_stream(await read_body(request, GenerateRequest, service.payload_limit))

    @app.post(
        "/",
        summary="Generate tokens, as a list of one answer, or as a stream if `stream` is true",
        openapi_extra=request_body(CompatGenerateRequest),
        responses=responses(list[GenerateResponse], 413, 422, 424, 429, 500, 503),
    )
    async def compat_generate(request: Request) -> Response:
        body = await read_body(request, CompatGenerateRequest, service.payload_limit)
        if body.stream:
            return event_stream(body)
        content, headers = await answer(request, body)
        return JsonResponse([content], headers=headers)


def _shown_prompt(body: GenerateRequest) -> str:
    """What stands before the generated text."""
    return body.inputs if body.given_parameters().return_full_text else ""
