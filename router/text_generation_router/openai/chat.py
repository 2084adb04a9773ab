"""/v1/chat/completions and /chat_tokenize."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import FastAPI, Request
from starlette.responses import Response

from text_generation_router.api.answers import JsonResponse, text_tokens, timing_headers
from text_generation_router.api.bodies import read_body
from text_generation_router.api.disconnect import until_disconnect
from text_generation_router.api.openapi import request_body, responses
from text_generation_router.errors import InvalidRequest
from text_generation_router.generation import Ending
from text_generation_router.openai.answers import Head, chat_body, usage_of
from text_generation_router.openai.chunks import DONE, ChatChunks, usage_event
from text_generation_router.openai.schema import ChatCompletion, ChatCompletionChunk, ChatRequest, ChatTokens
from text_generation_router.openai.service import Conversation, OpenAiService, event_stream
from text_generation_router.tokenizer import TextToken, TokenizerError


async def answer_chat(service: OpenAiService, body: ChatRequest, request: Request) -> Response:
    """A plain answer, or events. Raises RequestError."""
    arrived_s = time.monotonic()
    generation = service.generation
    with generation.counted():
        generation.gate.check_open()
        conversation = await service.converse(body)
    headers = {
        "x-compute-type": generation.compute_type,
        "x-compute-characters": str(len(conversation.prompt)),
    }
    if body.stream:
        return event_stream(service, _events(service, body, conversation, arrived_s), headers)
    work = _answer(service, body, conversation, arrived_s, headers)
    return await until_disconnect(request.receive, work)


async def _answer(
    service: OpenAiService, body: ChatRequest, conversation: Conversation, arrived_s: float, headers: dict[str, str]
) -> Response:
    generation = service.generation
    with generation.failures_counted(), generation.gate.enter(body.num_choices):
        sequences = await service.chat_sequences(body, conversation)
        answers = await service.answers(sequences, arrived_s)
        content = chat_body(
            _head(service, body, "chat.completion"),
            answers,
            body.stops,
            conversation.tools,
            logprobs=bool(body.logprobs),
        )
    return JsonResponse(content, headers={**headers, **timing_headers(answers)})


async def _events(
    service: OpenAiService, body: ChatRequest, conversation: Conversation, arrived_s: float
) -> AsyncGenerator[bytes, None]:
    generation = service.generation
    head = _head(service, body, "chat.completion.chunk")
    with generation.failures_counted(), generation.gate.enter(body.num_choices):
        sequences = await service.chat_sequences(body, conversation)
        writers = [
            ChatChunks(head, index, body.stops, conversation.tools, logprobs=bool(body.logprobs))
            for index in range(body.num_choices)
        ]
        endings: list[Ending] = []
        async with aclosing(service.pieces(sequences, arrived_s)) as pieces:
            async for index, piece in pieces:
                event = writers[index].push(piece)
                if event:
                    yield event
                if piece.ending is not None:
                    endings.append(piece.ending)
        if body.include_usage:
            yield usage_event(head, usage_of(endings, [sequences[0].input_length]))
        yield DONE


def _head(service: OpenAiService, body: ChatRequest, object: str) -> Head:
    model = body.model if body.model and body.model != "tgi" else service.served_model
    return Head.new(object, "chatcmpl", model, service.fingerprint)


def add_chat_routes(app: FastAPI, service: OpenAiService) -> None:
    limit_bytes = service.generation.payload_limit

    @app.post(
        "/v1/chat/completions",
        summary="Continue a conversation, as a whole or, if `stream` is true, as events",
        openapi_extra=request_body(ChatRequest),
        responses=responses(ChatCompletion, 413, 422, 424, 429, 500, 503, event_models=[ChatCompletionChunk]),
    )
    async def chat_completions(request: Request) -> Response:
        return await answer_chat(service, await read_body(request, ChatRequest, limit_bytes), request)

    @app.post(
        "/chat_tokenize",
        summary="A conversation as the model sees it: text and tokens",
        openapi_extra=request_body(ChatRequest),
        responses=responses(ChatTokens, 413, 422, 503),
    )
    async def chat_tokenize(request: Request) -> Response:
        body = await read_body(request, ChatRequest, limit_bytes)
        with service.generation.counted():
            service.generation.gate.check_open()
            text, tokens = await until_disconnect(request.receive, _tokenize(service, body))
        return JsonResponse({"tokenize_response": text_tokens(tokens), "templated_text": text})


async def _tokenize(service: OpenAiService, body: ChatRequest) -> tuple[str, list[TextToken]]:
    conversation = await service.converse(body)
    try:
        tokens = await service.tokenizer.tokenize(conversation.prompt, add_special_tokens=False)
    except TokenizerError as error:
        raise InvalidRequest(f"tokenizer error {error}") from error
    return conversation.prompt, tokens
