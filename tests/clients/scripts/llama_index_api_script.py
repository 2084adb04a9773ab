"""llama-index's HuggingFaceInferenceAPI: complete for text generation, chat for conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from driver import serve, taken, taken_when_there
from llama_index.core.llms import ChatMessage
from llama_index.llms.huggingface_api import HuggingFaceInferenceAPI

TIMEOUT_S = 60


def generate(url: str, prompt: str, key: str | None = None, **parameters: Any) -> dict[str, Any]:
    return {"text": _llm(url, key, "text-generation").complete(prompt, **_renamed(parameters)).text}


def generate_async(url: str, prompt: str, key: str | None = None, **parameters: Any) -> dict[str, Any]:
    answer = _llm(url, key, "text-generation").acomplete(prompt, **_renamed(parameters))
    return {"text": asyncio.run(answer).text}


def stream(url: str, prompt: str, key: str | None = None, read: int | None = None, **parameters: Any) -> dict[str, Any]:
    """`read`: hang up after so many pieces."""
    llm = _llm(url, key, "text-generation")
    return _deltas(taken(llm.stream_complete(prompt, **_renamed(parameters)), read))


def stream_async(
    url: str, prompt: str, key: str | None = None, read: int | None = None, **parameters: Any
) -> dict[str, Any]:
    pieces = _llm(url, key, "text-generation").astream_complete(prompt, **_renamed(parameters))
    return _deltas(asyncio.run(taken_when_there(pieces, read)))


def chat(url: str, messages: Sequence[Any], key: str | None = None, **fields: Any) -> dict[str, Any]:
    return _answer(_llm(url, key).chat(_messages(messages), **fields))


def chat_async(url: str, messages: Sequence[Any], key: str | None = None, **fields: Any) -> dict[str, Any]:
    return _answer(asyncio.run(_llm(url, key).achat(_messages(messages), **fields)))


def chat_stream(
    url: str, messages: Sequence[Any], key: str | None = None, read: int | None = None, **fields: Any
) -> dict[str, Any]:
    """`read`: hang up after so many pieces."""
    llm = _llm(url, key)
    return _deltas(taken(llm.stream_chat(_messages(messages), **fields), read))


def chat_stream_async(
    url: str, messages: Sequence[Any], key: str | None = None, read: int | None = None, **fields: Any
) -> dict[str, Any]:
    pieces = _llm(url, key).astream_chat(_messages(messages), **fields)
    return _deltas(asyncio.run(taken_when_there(pieces, read)))


def context_window(url: str) -> int:
    """What it found out about the server."""
    window: int = _llm(url, None, provider="hf-inference").metadata.context_window
    return window


def _llm(url: str, key: str | None, task: str | None = None, **settings: Any) -> Any:
    return HuggingFaceInferenceAPI(model_name=url, token=key, task=task, timeout=TIMEOUT_S, **settings)


def _renamed(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"max_tokens" if name == "max_new_tokens" else name: value for name, value in parameters.items()}


def _messages(messages: Sequence[Any]) -> list[Any]:
    return [ChatMessage(**message) for message in messages]


def _answer(answer: Any) -> dict[str, Any]:
    return {"text": answer.message.content}


def _deltas(pieces: Sequence[Any]) -> dict[str, Any]:
    return {"pieces": [piece.delta for piece in pieces]}


if __name__ == "__main__":
    serve(
        generate,
        generate_async,
        stream,
        stream_async,
        chat,
        chat_async,
        chat_stream,
        chat_stream_async,
        context_window,
    )
