"""Asking the OpenAI routes, and reading their streams."""

from __future__ import annotations

import json
from typing import Any

import httpx

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def post(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def chat(client: httpx.Client, question: str, **fields: Any) -> dict[str, Any]:
    return post(client, CHAT, {"messages": user(question), "temperature": 0, **fields})


def complete(client: httpx.Client, prompt: Any, **fields: Any) -> dict[str, Any]:
    return post(client, COMPLETIONS, {"prompt": prompt, "temperature": 0, **fields})


def stream_chat(client: httpx.Client, question: str, **fields: Any) -> list[dict[str, Any]]:
    answer = client.post(CHAT, json={"messages": user(question), "temperature": 0, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    return chunks(answer.content)


def stream_completion(client: httpx.Client, prompt: Any, **fields: Any) -> list[dict[str, Any]]:
    answer = client.post(COMPLETIONS, json={"prompt": prompt, "temperature": 0, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    return chunks(answer.content)


def chunks(body: bytes) -> list[dict[str, Any]]:
    """The objects of a stream, whose framing and end are checked on the way."""
    *blocks, done, rest = body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    for block in blocks:
        assert block.startswith(b"data: {")
        assert b"\n" not in block
        assert block.isascii()
    return [json.loads(block[len(b"data: ") :]) for block in blocks]


def content(events: list[dict[str, Any]], index: int = 0) -> str:
    """The text of one choice of a chat."""
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def text(events: list[dict[str, Any]], index: int = 0) -> str:
    """The text of one choice of a completion."""
    return "".join(choice["text"] for event in events for choice in event["choices"] if choice["index"] == index)
