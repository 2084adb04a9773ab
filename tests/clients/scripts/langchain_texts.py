"""What langchain's models of text have in common: parameters go to the constructor, stop strings to each call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from driver import taken, taken_async


def text_operations(new_llm: Callable[..., Any]) -> tuple[Callable[..., dict[str, Any]], ...]:
    """`generate`, `stream` and their twins of a model that is made from a URL, a key and parameters."""

    def generate(url: str, prompt: str, stop: Sequence[str] = (), **parameters: Any) -> dict[str, Any]:
        return {"text": new_llm(url, **parameters).invoke(prompt, stop=list(stop))}

    def generate_async(url: str, prompt: str, stop: Sequence[str] = (), **parameters: Any) -> dict[str, Any]:
        return {"text": asyncio.run(new_llm(url, **parameters).ainvoke(prompt, stop=list(stop)))}

    def stream(
        url: str, prompt: str, stop: Sequence[str] = (), read: int | None = None, **parameters: Any
    ) -> dict[str, Any]:
        """`read`: hang up after so many pieces."""
        return {"pieces": taken(new_llm(url, **parameters).stream(prompt, stop=list(stop)), read)}

    def stream_async(
        url: str, prompt: str, stop: Sequence[str] = (), read: int | None = None, **parameters: Any
    ) -> dict[str, Any]:
        pieces = new_llm(url, **parameters).astream(prompt, stop=list(stop))
        return {"pieces": asyncio.run(taken_async(pieces, read))}

    return generate, generate_async, stream, stream_async
