"""All routes of this package."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.responses import Response

from text_generation_router.api.schema import CompatGenerateRequest
from text_generation_router.openai.chat import add_chat_routes
from text_generation_router.openai.completions import add_completion_routes
from text_generation_router.openai.models import add_model_routes
from text_generation_router.openai.platforms import Invocation, add_platform_routes
from text_generation_router.openai.schema import (
    ChatCompletionChunk,
    ChatRequest,
    Completion,
    CompletionRequest,
    VertexRequest,
)
from text_generation_router.openai.service import OpenAiService

# What the OpenAPI document names: bodies, and the objects in events.
OPENAI_MODELS: tuple[type[BaseModel], ...] = (
    ChatRequest,
    CompletionRequest,
    Invocation,
    VertexRequest,
    ChatCompletionChunk,
    Completion,
)


def add_openai_routes(
    app: FastAPI,
    service: OpenAiService,
    answer_generate: Callable[[Request, CompatGenerateRequest], Awaitable[Response]],
) -> None:
    """`answer_generate` answers a body of /, which /invocations takes too."""
    add_chat_routes(app, service)
    add_completion_routes(app, service)
    add_model_routes(app, service.served_model)
    add_platform_routes(app, service, answer_generate)
