"""text-generation's Client and AsyncClient."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from driver import serve
from text_generation import AsyncClient, Client

TIMEOUT_S = 60


def generate(url: str, prompt: str, stop: Sequence[str] = (), **parameters: Any) -> dict[str, Any]:
    return _answer(Client(url, timeout=TIMEOUT_S).generate(prompt, stop_sequences=list(stop), **parameters))


def generate_async(url: str, prompt: str, stop: Sequence[str] = (), **parameters: Any) -> dict[str, Any]:
    client = AsyncClient(url, timeout=TIMEOUT_S)
    return _answer(asyncio.run(client.generate(prompt, stop_sequences=list(stop), **parameters)))


def stream(
    url: str, prompt: str, stop: Sequence[str] = (), read: int | None = None, **parameters: Any
) -> dict[str, Any]:
    """`read`: hang up after so many events."""
    events = []
    for event in Client(url, timeout=TIMEOUT_S).generate_stream(prompt, stop_sequences=list(stop), **parameters):
        events.append(event)
        if len(events) == read:
            break
    return _events(events)


def stream_async(
    url: str, prompt: str, stop: Sequence[str] = (), read: int | None = None, **parameters: Any
) -> dict[str, Any]:
    async def events() -> list[Any]:
        events = []
        client = AsyncClient(url, timeout=TIMEOUT_S)
        async for event in client.generate_stream(prompt, stop_sequences=list(stop), **parameters):
            events.append(event)
            if len(events) == read:
                break
        return events

    return _events(asyncio.run(events()))


def _answer(response: Any) -> dict[str, Any]:
    return {"text": response.generated_text, "details": response.details.model_dump(mode="json")}


def _events(events: Sequence[Any]) -> dict[str, Any]:
    return {
        "pieces": [event.token.text for event in events if not event.token.special],
        "events": [event.model_dump(mode="json") for event in events],
    }


if __name__ == "__main__":
    serve(
        {
            "generate": generate,
            "generate_async": generate_async,
            "stream": stream,
            "stream_async": stream_async,
        }
    )
