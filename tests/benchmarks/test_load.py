"""The load generator against servers of a few lines, which say exactly what a test needs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from benchmarks.load import closed_loop, open_loop
from benchmarks.rates import Run
from benchmarks.serve import row
from benchmarks.streams import Answer, LoadError, Target, open_stream, read_events

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ERROR_EVENT = b'data:{"error":"out of blocks","error_type":"generation"}\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def tgi_answer(num_tokens: int) -> bytes:
    events = [
        {"token": {"text": "a"}, "generated_text": "a" * num_tokens if index == num_tokens - 1 else None}
        for index in range(num_tokens)
    ]
    return HEAD + b"".join(chunk(b"data:" + json.dumps(event).encode() + b"\n\n") for event in events) + chunk(b"")


def with_server(handler: Handler, ask: Callable[[str], Awaitable[Any]]) -> Any:
    """What `ask` returns for the address of a server whose connections `handler` answers."""

    async def run() -> Any:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        async with server:
            return await ask(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")

    return asyncio.run(run())


def answering(*answers: bytes) -> Handler:
    """The first connection gets the first answer, and so on; the last one all that come later."""
    left = list(answers)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()
        writer.close()

    return handle


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 429 Too Many Requests\r\n\r\n{"error":"Model is overloaded"}',
        HEAD + chunk(ERROR_EVENT) + chunk(b""),
    ],
)
def test_server_that_refuses_is_quoted(answer: bytes) -> None:
    with pytest.raises(LoadError, match=r"overloaded|out of blocks"):
        with_server(answering(answer), lambda url: open_stream(Target(url), "text", 4))


def test_connection_that_the_server_closed_is_tried_once_more() -> None:
    answer: Answer = with_server(answering(b"", tgi_answer(3)), lambda url: open_stream(Target(url), "text", 3))
    assert len(answer.arrivals_s) == 3
    assert answer.text == "aaa"
    run: Run = with_server(answering(b""), lambda url: closed_loop(Target(url), ["text"], 3))
    assert (len(run.errors), run.arrivals_s) == (1, [])


def test_stream_that_breaks_off_is_not_tried_again() -> None:
    broken = tgi_answer(4)[:-60]
    with pytest.raises(LoadError, match="broke off after 3 events"):
        with_server(answering(broken, tgi_answer(4)), lambda url: open_stream(Target(url), "text", 4))


def test_closed_loop_keeps_so_many_streams_open_and_no_more() -> None:
    open_now = most = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.01)
        open_now -= 1
        writer.write(tgi_answer(2))
        await writer.drain()
        writer.close()

    run: Run = with_server(handle, lambda url: closed_loop(Target(url), ["text"] * 7, 2, num_streams=3))
    assert most == 3
    assert (len(run.arrivals_s), run.num_tokens, run.errors) == (7, 14, [])


def test_open_loop_sends_on_time_though_nothing_was_answered_yet() -> None:
    arrived_s: list[float] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived_s.append(time.perf_counter())
        await asyncio.sleep(0.3)
        writer.write(tgi_answer(1))
        await writer.drain()
        writer.close()

    schedule_s = [0.05, 0.1, 0.15]
    run: Run = with_server(handle, lambda url: open_loop(Target(url), ["text"] * 3, 1, schedule_s, grace_s=5))
    assert arrived_s[2] - arrived_s[0] < 0.25  # all came before the first answer
    assert all(took_s >= 0.3 for took_s in run.first_token_times_s())
    # Times count from the moments that were due, to the microsecond.
    sent_s = sorted(run.sent_s)
    assert [at_s - sent_s[0] for at_s in sent_s] == pytest.approx([0, 0.05, 0.1], abs=1e-6)


def test_what_an_open_loop_never_gets_is_an_error() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    run: Run = with_server(silent, lambda url: open_loop(Target(url), ["text"], 1, [0.0], grace_s=0.05))
    assert run.errors == ["not finished in time"]
    assert row("1 requests/s", run) == "| 1 requests/s | 0 | 1 | - | - | - | - |"


def events(*bodies: object) -> Sequence[tuple[float, bytes]]:
    return [(float(index), b"data: " + json.dumps(body).encode()) for index, body in enumerate(bodies)]


def test_openai_events_are_counted_as_the_usage_says() -> None:
    stream = [
        *events(
            {"choices": [{"text": "ab", "finish_reason": None}]},
            {"choices": [{"text": "c", "finish_reason": None}]},
            {"choices": [{"text": "", "finish_reason": "length"}]},
            {"choices": [], "usage": {"completion_tokens": 4}},
        ),
        (4.0, b"data: [DONE]"),
    ]
    assert read_events("openai", stream) == ([0.0, 0.0, 1.0, 1.0], "abc")


def test_openai_tokens_without_text_are_tokens() -> None:
    special = {"choices": [{"text": "", "finish_reason": None}]}
    last: dict[str, object] = {"choices": [{"text": "", "finish_reason": "length"}], "usage": {"completion_tokens": 3}}
    assert read_events("openai", events(special, special, last)) == ([0.0, 0.0, 1.0], "")
    last["usage"] = {"completion_tokens": 1}
    assert read_events("openai", events(last)) == ([0.0], "")


def test_openai_request_goes_on_after_an_end_only_where_that_is_wanted() -> None:
    endless = Target("http://127.0.0.1:1/base", "openai", "name").request("text", [1, 2], 5)
    head, _, body = endless.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /base/v1/completions HTTP/1.1\r\nHost: 127.0.0.1:1\r\n")
    fields = json.loads(body)
    assert (fields["prompt"], fields["max_tokens"], fields["ignore_eos"]) == ([1, 2], 5, True)
    plain = Target("http://127.0.0.1:1", "openai", "name", endless=False).request("text", None, 5)
    fields = json.loads(plain.partition(b"\r\n\r\n")[2])
    assert fields["prompt"] == "text"
    assert "ignore_eos" not in fields
