"""langchain-huggingface's HuggingFaceEndpoint and ChatHuggingFace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from driver import serve, taken, taken_async
from langchain_huggingface import ChatHuggingFace, HuggingFaceEndpoint
from langchain_texts import text_operations


def chat(url: str, messages: Sequence[Any], key: str | None = None, **fields: Any) -> dict[str, Any]:
    return _answer(_chat(url, key).invoke(list(messages), **fields))


def chat_async(url: str, messages: Sequence[Any], key: str | None = None, **fields: Any) -> dict[str, Any]:
    return _answer(asyncio.run(_chat(url, key).ainvoke(list(messages), **fields)))


def chat_stream(
    url: str, messages: Sequence[Any], key: str | None = None, read: int | None = None, **fields: Any
) -> dict[str, Any]:
    """`read`: hang up after so many pieces."""
    return _pieces(taken(_chat(url, key).stream(list(messages), **fields), read))


def chat_stream_async(
    url: str, messages: Sequence[Any], key: str | None = None, read: int | None = None, **fields: Any
) -> dict[str, Any]:
    return _pieces(asyncio.run(taken_async(_chat(url, key).astream(list(messages), **fields), read)))


def call_tools(url: str, question: str, tools: Sequence[Any], tool_choice: Any, **fields: Any) -> Any:
    """The calls that it found in the answer: names and parsed arguments."""
    answer = _chat(url, None).bind_tools(list(tools), tool_choice=tool_choice).invoke(question, **fields)
    return {"calls": answer.tool_calls, "invalid": answer.invalid_tool_calls}


def _llm(url: str, key: str | None = None, **parameters: Any) -> Any:
    # It has a field for a token, and leaves it at home unless the server is Hugging Face's.
    headers = {} if key is None else {"headers": {"Authorization": f"Bearer {key}"}}
    return HuggingFaceEndpoint(endpoint_url=url, server_kwargs=headers, **parameters)


def _chat(url: str, key: str | None) -> Any:
    return ChatHuggingFace(llm=_llm(url, key))


def _answer(answer: Any) -> dict[str, Any]:
    return {"text": answer.content, "usage": answer.usage_metadata}


def _pieces(pieces: Sequence[Any]) -> dict[str, Any]:
    return {"pieces": [piece.content for piece in pieces]}


if __name__ == "__main__":
    serve(*text_operations(_llm), chat, chat_async, chat_stream, chat_stream_async, call_tools)
