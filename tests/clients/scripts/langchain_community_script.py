"""langchain-community's HuggingFaceTextGenInference: parameters go to its constructor, stop strings to each call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from driver import serve
from langchain_community.llms import HuggingFaceTextGenInference


def generate(url: str, prompt: str, stop: Sequence[str] = (), **parameters: Any) -> dict[str, Any]:
    return {"text": _llm(url, parameters).invoke(prompt, stop=list(stop))}


def generate_async(url: str, prompt: str, stop: Sequence[str] = (), **parameters: Any) -> dict[str, Any]:
    return {"text": asyncio.run(_llm(url, parameters).ainvoke(prompt, stop=list(stop)))}


def stream(
    url: str, prompt: str, stop: Sequence[str] = (), read: int | None = None, **parameters: Any
) -> dict[str, Any]:
    """`read`: hang up after so many pieces."""
    pieces = []
    for piece in _llm(url, parameters).stream(prompt, stop=list(stop)):
        pieces.append(piece)
        if len(pieces) == read:
            break
    return {"pieces": pieces}


def stream_async(
    url: str, prompt: str, stop: Sequence[str] = (), read: int | None = None, **parameters: Any
) -> dict[str, Any]:
    async def pieces() -> list[str]:
        pieces = []
        async for piece in _llm(url, parameters).astream(prompt, stop=list(stop)):
            pieces.append(piece)
            if len(pieces) == read:
                break
        return pieces

    return {"pieces": asyncio.run(pieces())}


def batch(url: str, prompts: Sequence[str], **parameters: Any) -> list[str]:
    texts: list[str] = _llm(url, parameters).batch(list(prompts))
    return texts


def _llm(url: str, parameters: dict[str, Any]) -> Any:
    return HuggingFaceTextGenInference(inference_server_url=url, **parameters)


if __name__ == "__main__":
    serve(
        {
            "generate": generate,
            "generate_async": generate_async,
            "stream": stream,
            "stream_async": stream_async,
            "batch": batch,
        }
    )
