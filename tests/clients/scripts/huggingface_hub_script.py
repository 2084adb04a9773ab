"""huggingface_hub's InferenceClient and AsyncInferenceClient, old and new: text generation, chats, and what it asks
about a server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from driver import serve, taken, taken_async
from huggingface_hub import AsyncInferenceClient, InferenceClient

TIMEOUT_S = 60


def generate(url: str, prompt: str, key: str | None = None, **parameters: Any) -> dict[str, Any]:
    return _answer(_client(url, key).text_generation(prompt, **parameters))


def generate_async(url: str, prompt: str, key: str | None = None, **parameters: Any) -> dict[str, Any]:
    async def answer() -> Any:
        async with _async_client(url, key) as client:
            return await client.text_generation(prompt, **parameters)

    return _answer(asyncio.run(answer()))


def stream(url: str, prompt: str, key: str | None = None, read: int | None = None, **parameters: Any) -> dict[str, Any]:
    """`read`: hang up after so many events."""
    client = _client(url, key)  # held while it streams: the new one hangs up when it is collected
    return _events(taken(client.text_generation(prompt, stream=True, **parameters), read))


def stream_async(
    url: str, prompt: str, key: str | None = None, read: int | None = None, **parameters: Any
) -> dict[str, Any]:
    async def events() -> list[Any]:
        async with _async_client(url, key) as client:
            return await taken_async(await client.text_generation(prompt, stream=True, **parameters), read)

    return _events(asyncio.run(events()))


def chat(url: str, messages: Sequence[Any], key: str | None = None, **fields: Any) -> dict[str, Any]:
    return _chat_answer(_client(url, key).chat_completion(messages, **fields))


def chat_async(url: str, messages: Sequence[Any], key: str | None = None, **fields: Any) -> dict[str, Any]:
    async def answer() -> Any:
        async with _async_client(url, key) as client:
            return await client.chat_completion(messages, **fields)

    return _chat_answer(asyncio.run(answer()))


def chat_stream(
    url: str, messages: Sequence[Any], key: str | None = None, read: int | None = None, **fields: Any
) -> dict[str, Any]:
    """`read`: hang up after so many events."""
    client = _client(url, key)
    return _chunks(taken(client.chat_completion(messages, stream=True, **fields), read))


def chat_stream_async(
    url: str, messages: Sequence[Any], key: str | None = None, read: int | None = None, **fields: Any
) -> dict[str, Any]:
    async def chunks() -> list[Any]:
        async with _async_client(url, key) as client:
            return await taken_async(await client.chat_completion(messages, stream=True, **fields), read)

    return _chunks(asyncio.run(chunks()))


def endpoint(url: str) -> dict[str, Any]:
    """What it says of the server."""
    client = _client(url, None, provider="hf-inference")
    return {"info": client.get_endpoint_info(), "healthy": client.health_check()}


def _client(url: str, key: str | None, **settings: Any) -> Any:
    return InferenceClient(model=url, token=key, timeout=TIMEOUT_S, **settings)


def _async_client(url: str, key: str | None) -> Any:
    return AsyncInferenceClient(model=url, token=key, timeout=TIMEOUT_S)


def _answer(answer: Any) -> dict[str, Any]:
    if isinstance(answer, str):
        return {"text": answer}
    return {"text": answer.generated_text, "details": _json(answer.details)}


def _events(events: Sequence[Any]) -> dict[str, Any]:
    """Texts, or with `details` the events that hold them."""
    if all(isinstance(event, str) for event in events):
        return {"pieces": list(events)}
    return {"pieces": [event.token.text for event in events], "events": _json(events)}


def _chat_answer(answer: Any) -> dict[str, Any]:
    return {"text": answer.choices[0].message.content, "answer": _json(answer)}


def _chunks(chunks: Sequence[Any]) -> dict[str, Any]:
    return {
        "pieces": [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices],
        "chunks": _json(chunks),
    }


def _json(value: Any) -> Any:
    """Its answers are dicts that are dataclasses too."""
    return json.loads(json.dumps(value))


if __name__ == "__main__":
    serve(generate, generate_async, stream, stream_async, chat, chat_async, chat_stream, chat_stream_async, endpoint)
