"""The event response by itself: keep-alives, errors before and after the status, numbers that JSON does not have."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from starlette.types import Message

from text_generation_router.api.events import EventStream, token_event
from text_generation_router.errors import GenerationError, IncompleteStream
from text_generation_router.generation import Piece
from text_generation_router.scheduling.request import TokenNumbers
from text_generation_router.transcript import Token


class Client:
    """An ASGI server's two ends, as seen by a response."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.hang_up = asyncio.Event()

    async def receive(self) -> Message:
        await self.hang_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


def respond(
    events: Callable[[], AsyncGenerator[bytes, None]],
    *,
    keep_alive_s: float = 15.0,
    hang_up_after_s: float | None = None,
) -> Client:
    async def test() -> Client:
        client = Client()
        if hang_up_after_s is not None:
            asyncio.get_running_loop().call_later(hang_up_after_s, client.hang_up.set)
        response = EventStream(events(), {}, keep_alive_s)
        await asyncio.wait_for(response({"type": "http"}, client.receive, client.send), 10)
        return client

    return asyncio.run(test())


def test_silence_is_filled_with_comments() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(0.12)  # silence before the first event too
        yield b"data: 1\n\n"
        await asyncio.sleep(0.12)
        yield b"data: 2\n\n"

    client = respond(events, keep_alive_s=0.05)
    assert client.body == b":\n\n:\n\ndata: 1\n\n:\n\n:\n\ndata: 2\n\n"
    assert [message["type"] for message in client.messages].count("http.response.start") == 1


def test_no_comment_is_sent_while_events_come() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        for _ in range(6):
            await asyncio.sleep(0.02)
            yield b"data: 1\n\n"

    assert b":\n\n" not in respond(events, keep_alive_s=0.1).body.replace(b"data: 1\n\n", b"")


def test_an_error_before_anything_was_sent_is_raised() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        raise GenerationError("gone")
        yield b""

    with pytest.raises(GenerationError):
        respond(events)


@pytest.mark.parametrize("error", [GenerationError("gön"), IncompleteStream()])
def test_an_error_after_the_first_event_is_the_last_event(error: GenerationError | IncompleteStream) -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"
        raise error

    client = respond(events)
    *_, last, rest = client.body.split(b"\n\n")
    assert json.loads(last.removeprefix(b"data: ")) == {"error": str(error), "error_type": error.error_type}
    assert last.isascii()
    assert rest == b""
    assert client.messages[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


def test_a_bug_after_the_first_event_is_told_without_its_details() -> None:
    client: list[Client] = []

    async def events() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"
        raise ZeroDivisionError("secret")

    async def test() -> None:
        client.append(Client())
        await EventStream(events(), {})({"type": "http"}, client[0].receive, client[0].send)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(test())
    assert client[0].body.endswith(b'data: {"error": "Internal server error", "error_type": "internal"}\n\n')


def test_a_hang_up_closes_the_events_before_the_response_ends() -> None:
    closed = []

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"data: 1\n\n"
                await asyncio.sleep(0.001)
        finally:
            await asyncio.sleep(0.01)
            closed.append(True)

    respond(events, hang_up_after_s=0.02)
    assert closed == [True]


@pytest.mark.parametrize("logprob", [math.nan, math.inf, -math.inf])
def test_a_logprob_that_json_cannot_write_is_null(logprob: float) -> None:
    token = Token(1, '"\\\u2028', TokenNumbers(logprob), False)
    event = token_event(3, Piece(token, [token], None), details=True, prompt="")
    content: dict[str, Any] = json.loads(event.removeprefix(b"data: "))
    shown = {"id": 1, "text": '"\\\u2028', "logprob": None, "special": False}
    assert content == {"index": 3, "token": shown, "top_tokens": [shown], "generated_text": None, "details": None}
