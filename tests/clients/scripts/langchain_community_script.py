"""langchain-community's HuggingFaceTextGenInference: parameters go to its constructor, stop strings to each call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from driver import serve, taken, taken_async
from langchain_community.llms import HuggingFaceTextGenInference


def generate(url: str, prompt: str, stop: Sequence[str] = (), **parameters: Any) -> dict[str, Any]:
    return {"text": _llm(url, **parameters).invoke(prompt, stop=list(stop))}


def generate_async(url: str, prompt: str, stop: Sequence[str] = (), **parameters: Any) -> dict[str, Any]:
    return {"text": asyncio.run(_llm(url, **parameters).ainvoke(prompt, stop=list(stop)))}


def stream(
    url: str, prompt: str, stop: Sequence[str] = (), read: int | None = None, **parameters: Any
) -> dict[str, Any]:
    """`read`: hang up after so many pieces."""
    return {"pieces": taken(_llm(url, **parameters).stream(prompt, stop=list(stop)), read)}


def stream_async(
    url: str, prompt: str, stop: Sequence[str] = (), read: int | None = None, **parameters: Any
) -> dict[str, Any]:
    pieces = _llm(url, **parameters).astream(prompt, stop=list(stop))
    return {"pieces": asyncio.run(taken_async(pieces, read))}


def batch(url: str, prompts: Sequence[str], **parameters: Any) -> list[str]:
    texts: list[str] = _llm(url, **parameters).batch(list(prompts))
    return texts


def _llm(url: str, key: str | None = None, **parameters: Any) -> Any:
    headers = {} if key is None else {"headers": {"Authorization": f"Bearer {key}"}}
    return HuggingFaceTextGenInference(inference_server_url=url, server_kwargs=headers, **parameters)


if __name__ == "__main__":
    serve(generate, generate_async, stream, stream_async, batch)
