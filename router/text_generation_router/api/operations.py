"""Routes about the server itself, and /tokenize."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request
from starlette.responses import Response

from text_generation_router.admission import Gate
from text_generation_router.api.answers import JsonResponse, text_tokens
from text_generation_router.api.bodies import read_body
from text_generation_router.api.disconnect import until_disconnect
from text_generation_router.api.openapi import request_body, responses
from text_generation_router.api.schema import ErrorResponse, GenerateRequest, Info, TextToken
from text_generation_router.errors import InvalidRequest, Unhealthy
from text_generation_router.metrics import CONTENT_TYPE
from text_generation_router.tokenizer import Tokenizer, TokenizerError


def add_operation_routes(
    app: FastAPI, gate: Gate, info: Info, check_health: Callable[[], Awaitable[bool]], metrics_page: Callable[[], bytes]
) -> None:
    info_content = info.model_dump()

    async def health() -> Response:
        if gate.is_closed or not await check_health():
            raise Unhealthy
        return Response()

    for path in ("/", "/health", "/ping"):
        app.add_api_route(
            path,
            health,
            methods=["GET"],
            summary="Health check",
            responses={200: {"description": "A request would be served"}, 503: {"model": ErrorResponse}},
        )

    @app.get("/info", summary="Facts about the model and the limits", responses={200: {"model": Info}})
    async def show_info() -> Response:
        return JsonResponse(info_content)

    @app.get("/metrics", summary="Prometheus metrics", responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        return Response(metrics_page(), media_type=CONTENT_TYPE)


def add_tokenize_route(app: FastAPI, gate: Gate, tokenizer: Tokenizer, payload_limit: int) -> None:
    @app.post(
        "/tokenize",
        summary="Tokens of a text",
        openapi_extra=request_body(GenerateRequest),
        responses=responses(list[TextToken], 413, 422, 503),
    )
    async def tokenize(request: Request) -> Response:
        gate.check_open()
        body = await read_body(request, GenerateRequest, payload_limit)
        try:
            tokens = await until_disconnect(request.receive, tokenizer.tokenize(body.inputs))
        except TokenizerError as error:
            raise InvalidRequest(f"tokenizer error {error}") from error
        # A text of 2 MB may have as many tokens: a second of work that others should not wait for.
        return await asyncio.to_thread(lambda: JsonResponse(text_tokens(tokens)))
