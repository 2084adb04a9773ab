"""Routes that hosting platforms call: /invocations takes any generating body, /vertex takes several in one."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import FastAPI, Request
from pydantic import Discriminator, RootModel, Tag
from starlette.responses import Response

from text_generation_router.api.answers import JsonResponse
from text_generation_router.api.bodies import read_body
from text_generation_router.api.disconnect import until_disconnect
from text_generation_router.api.openapi import request_body, responses
from text_generation_router.api.schema import CompatGenerateRequest, GenerateResponse, StreamResponse
from text_generation_router.openai.chat import answer_chat
from text_generation_router.openai.choice import shown_text
from text_generation_router.openai.completions import answer_completion
from text_generation_router.openai.errors import NoInstances
from text_generation_router.openai.schema import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatRequest,
    Completion,
    CompletionRequest,
    Predictions,
    VertexGenerate,
    VertexRequest,
)
from text_generation_router.openai.service import OpenAiService
from text_generation_router.parameters import GenerateParameters
from text_generation_router.validation import ValidRequest


def _kind(body: Any) -> str:
    """By what a body has; one that has nothing known is told that `inputs` is missing."""
    kinds = ("inputs", "messages", "prompt")
    if isinstance(body, dict):
        return next((kind for kind in kinds if kind in body), "inputs")
    if isinstance(body, ChatRequest):
        return "messages"
    return "prompt" if isinstance(body, CompletionRequest) else "inputs"


class Invocation(
    RootModel[
        Annotated[
            Annotated[CompatGenerateRequest, Tag("inputs")]
            | Annotated[ChatRequest, Tag("messages")]
            | Annotated[CompletionRequest, Tag("prompt")],
            Discriminator(_kind),
        ]
    ]
):
    """A body of /, of /v1/chat/completions or of /v1/completions, known by its `inputs`, `messages` or `prompt`."""


def add_platform_routes(
    app: FastAPI,
    service: OpenAiService,
    answer_generate: Callable[[Request, CompatGenerateRequest], Awaitable[Response]],
) -> None:
    limit_bytes = service.generation.payload_limit

    @app.post(
        "/invocations",
        summary="Generate from a body of /, /v1/chat/completions or /v1/completions (SageMaker)",
        openapi_extra=request_body(Invocation),
        responses=responses(
            list[GenerateResponse] | ChatCompletion | Completion,
            *(413, 422, 424, 429, 500, 503),
            event_models=[StreamResponse, ChatCompletionChunk, Completion],
        ),
    )
    async def invocations(request: Request) -> Response:
        body = (await read_body(request, Invocation, limit_bytes)).root
        if isinstance(body, ChatRequest):
            return await answer_chat(service, body, request)
        if isinstance(body, CompletionRequest):
            return await answer_completion(service, body, request)
        return await answer_generate(request, body)

    @app.post(
        "/vertex",
        summary="Generate from several prompts or conversations (Vertex AI)",
        openapi_extra=request_body(VertexRequest),
        responses=responses(Predictions, 413, 422, 424, 429, 500, 503),
    )
    async def vertex(request: Request) -> Response:
        body = await read_body(request, VertexRequest, limit_bytes)
        return JsonResponse({"predictions": await until_disconnect(request.receive, _predict(service, body))})


async def _predict(service: OpenAiService, body: VertexRequest) -> list[str]:
    """The text of each instance. Raises RequestError if one of them fails."""
    arrived_s = time.monotonic()
    generation = service.generation
    with generation.counted():
        generation.gate.check_open()
        if not body.instances:
            raise NoInstances
        with generation.gate.enter(len(body.instances)):
            sequences = [await _sequence(service, instance) for instance in body.instances]
            answers = await service.answers(sequences, arrived_s)
    stops = [instance.stops if isinstance(instance, ChatRequest) else [] for instance in body.instances]
    return [shown_text(answer, stop)[0] for answer, stop in zip(answers, stops, strict=True)]


async def _sequence(service: OpenAiService, instance: VertexGenerate | ChatRequest) -> ValidRequest:
    if isinstance(instance, ChatRequest):
        return (await service.chat_sequences(instance, await service.converse(instance)))[0]
    given = instance.parameters
    parameters = GenerateParameters(
        do_sample=True,
        max_new_tokens=None if given is None else given.max_new_tokens,
        seed=None if given is None else given.seed,
    )
    return await service.generation.validator.validate(instance.inputs, parameters)
