"""text-generation's Client and AsyncClient."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from driver import serve, taken, taken_async
from text_generation import AsyncClient, Client

TIMEOUT_S = 60


def generate(url: str, prompt: str, stop: Sequence[str] = (), key: str | None = None, **parameters: Any) -> Any:
    client = Client(url, headers=_headers(key), timeout=TIMEOUT_S)
    return _answer(client.generate(prompt, stop_sequences=list(stop), **parameters))


def generate_async(url: str, prompt: str, stop: Sequence[str] = (), key: str | None = None, **parameters: Any) -> Any:
    client = AsyncClient(url, headers=_headers(key), timeout=TIMEOUT_S)
    return _answer(asyncio.run(client.generate(prompt, stop_sequences=list(stop), **parameters)))


def stream(
    url: str,
    prompt: str,
    stop: Sequence[str] = (),
    read: int | None = None,
    key: str | None = None,
    **parameters: Any,
) -> dict[str, Any]:
    """`read`: hang up after so many events."""
    client = Client(url, headers=_headers(key), timeout=TIMEOUT_S)
    return _events(taken(client.generate_stream(prompt, stop_sequences=list(stop), **parameters), read))


def stream_async(
    url: str,
    prompt: str,
    stop: Sequence[str] = (),
    read: int | None = None,
    key: str | None = None,
    **parameters: Any,
) -> dict[str, Any]:
    client = AsyncClient(url, headers=_headers(key), timeout=TIMEOUT_S)
    events = client.generate_stream(prompt, stop_sequences=list(stop), **parameters)
    return _events(asyncio.run(taken_async(events, read)))


def _headers(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _answer(response: Any) -> dict[str, Any]:
    return {"text": response.generated_text, "details": response.details.model_dump(mode="json")}


def _events(events: Sequence[Any]) -> dict[str, Any]:
    return {
        "pieces": [event.token.text for event in events if not event.token.special],
        "events": [event.model_dump(mode="json") for event in events],
    }


if __name__ == "__main__":
    serve(generate, generate_async, stream, stream_async)
