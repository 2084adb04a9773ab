"""openai's OpenAI and AsyncOpenAI: chats, completions and models, as their answers are after parsing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from driver import serve, taken, taken_async
from openai import AsyncOpenAI, OpenAI

TIMEOUT_S = 60


def chat(url: str, messages: Sequence[Any], key: str | None = None, **fields: Any) -> dict[str, Any]:
    with OpenAI(**_settings(url, key)) as client:
        return _answer(client.chat.completions.create(messages=messages, **_fields(fields)))


def chat_async(url: str, messages: Sequence[Any], key: str | None = None, **fields: Any) -> dict[str, Any]:
    async def answer() -> Any:
        async with AsyncOpenAI(**_settings(url, key)) as client:
            return await client.chat.completions.create(messages=messages, **_fields(fields))

    return _answer(asyncio.run(answer()))


def chat_stream(
    url: str, messages: Sequence[Any], key: str | None = None, read: int | None = None, **fields: Any
) -> dict[str, Any]:
    """`read`: hang up after so many events."""
    with OpenAI(**_settings(url, key)) as client:
        return _chunks(taken(client.chat.completions.create(messages=messages, stream=True, **_fields(fields)), read))


def chat_stream_async(
    url: str, messages: Sequence[Any], key: str | None = None, read: int | None = None, **fields: Any
) -> dict[str, Any]:
    async def chunks() -> list[Any]:
        async with AsyncOpenAI(**_settings(url, key)) as client:
            stream = await client.chat.completions.create(messages=messages, stream=True, **_fields(fields))
            return await taken_async(stream, read)

    return _chunks(asyncio.run(chunks()))


def complete(url: str, prompt: Any, **fields: Any) -> Any:
    with OpenAI(**_settings(url, None)) as client:
        return client.completions.create(prompt=prompt, **_fields(fields)).model_dump(mode="json")


def complete_async(url: str, prompt: Any, **fields: Any) -> Any:
    async def answer() -> Any:
        async with AsyncOpenAI(**_settings(url, None)) as client:
            return await client.completions.create(prompt=prompt, **_fields(fields))

    return asyncio.run(answer()).model_dump(mode="json")


def complete_stream(url: str, prompt: Any, **fields: Any) -> Any:
    with OpenAI(**_settings(url, None)) as client:
        return _dumped(taken(client.completions.create(prompt=prompt, stream=True, **_fields(fields)), None))


def complete_stream_async(url: str, prompt: Any, **fields: Any) -> Any:
    async def chunks() -> list[Any]:
        async with AsyncOpenAI(**_settings(url, None)) as client:
            return await taken_async(
                await client.completions.create(prompt=prompt, stream=True, **_fields(fields)), None
            )

    return _dumped(asyncio.run(chunks()))


def models(url: str) -> Any:
    with OpenAI(**_settings(url, None)) as client:
        return _dumped(client.models.list().data)


def embed(url: str, text: str) -> Any:
    with OpenAI(**_settings(url, None)) as client:
        return client.embeddings.create(model="tgi", input=text).model_dump(mode="json")


def _settings(url: str, key: str | None) -> dict[str, Any]:
    """It always sends a key, and after 429 and 5xx it would ask again."""
    return {"base_url": f"{url}/v1", "api_key": key or "unused", "max_retries": 0, "timeout": TIMEOUT_S}


def _fields(fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": "tgi", **fields}


def _answer(answer: Any) -> dict[str, Any]:
    return {"text": answer.choices[0].message.content, "answer": answer.model_dump(mode="json")}


def _chunks(chunks: Sequence[Any]) -> dict[str, Any]:
    return {
        "pieces": [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices],
        "chunks": _dumped(chunks),
    }


def _dumped(parts: Sequence[Any]) -> list[Any]:
    return [part.model_dump(mode="json") for part in parts]


if __name__ == "__main__":
    serve(
        chat,
        chat_async,
        chat_stream,
        chat_stream_async,
        complete,
        complete_async,
        complete_stream,
        complete_stream_async,
        models,
        embed,
    )
