"""llama-index's TextGenerationInference, which chats, through a fork of text-generation by the name of tgi."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from driver import serve, taken_when_there
from llama_index.core.llms import ChatMessage
from llama_index.llms.text_generation_inference import TextGenerationInference


def chat(url: str, messages: Sequence[Any], key: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"text": _llm(url, key).chat(_messages(messages), **fields).message.content}


def chat_async(url: str, messages: Sequence[Any], key: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"text": asyncio.run(_llm(url, key).achat(_messages(messages), **fields)).message.content}


def chat_stream_async(
    url: str, messages: Sequence[Any], key: str | None = None, read: int | None = None, **fields: Any
) -> dict[str, Any]:
    """`read`: hang up after so many pieces."""
    pieces = _llm(url, key).astream_chat(_messages(messages), **fields)
    return {"pieces": [piece.delta for piece in asyncio.run(taken_when_there(pieces, read))]}


def metadata(url: str) -> Any:
    """What it found out about the server."""
    return _llm(url, None).metadata.model_dump(mode="json")


def _llm(url: str, key: str | None) -> Any:
    return TextGenerationInference(model_url=url, token=key)


def _messages(messages: Sequence[Any]) -> list[Any]:
    return [ChatMessage(**message) for message in messages]


if __name__ == "__main__":
    serve(chat, chat_async, chat_stream_async, metadata)
