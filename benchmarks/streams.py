"""One stream of tokens from a server, by TGI's API or OpenAI's: plain sockets, and no parsing while tokens arrive.

The client shares the machine with the server that it measures, so it only notes when events come and reads them when
the stream has ended.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from benchmarks.rates import spread

Api = Literal["tgi", "openai"]
_EVENT_END = b"\n\n"
_DONE = b"[DONE]"
_SHOWN_CHARACTERS = 300  # of what a server said instead


class LoadError(Exception):
    """The server did not answer as a stream of tokens. The message has its own words."""


@dataclass(frozen=True)
class Target:
    """Where streams are opened.

    `model` is OpenAI's field. With `endless`, OpenAI-like servers are told to go on after an end token, which llama.cpp
    and vLLM understand.
    """

    url: str
    api: Api = "tgi"
    model: str = "tgi"
    endless: bool = True

    def request(self, prompt: str, prompt_ids: Sequence[int] | None, max_new_tokens: int) -> bytes:
        """The HTTP request. OpenAI-like servers get the prompt as ids, where there are any."""
        address = urlsplit(self.url)
        body: dict[str, Any]
        if self.api == "tgi":
            route = "/generate_stream"
            body = {"inputs": prompt, "parameters": {"max_new_tokens": max_new_tokens}}
        else:
            route = "/v1/completions"
            body = {
                "model": self.model,
                "prompt": prompt if prompt_ids is None else list(prompt_ids),
                "max_tokens": max_new_tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            if self.endless:
                body["ignore_eos"] = True
        data = json.dumps(body).encode()
        head = (
            f"POST {address.path.rstrip('/')}{route} HTTP/1.1\r\nHost: {address.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + data


@dataclass(frozen=True)
class Answer:
    """A finished stream: when it was sent and when each token came, in seconds of `time.perf_counter`."""

    sent_s: float
    arrivals_s: list[float]
    text: str


async def open_stream(
    target: Target, prompt: str, max_new_tokens: int, prompt_ids: Sequence[int] | None = None
) -> Answer:
    """One greedy request. A connection that closes before the server said anything is tried once more.

    Raises: LoadError with the server's own words; OSError.
    """
    request = target.request(prompt, prompt_ids, max_new_tokens)
    sent_s = time.perf_counter()
    try:
        events = await _events(target, request)
    except (ConnectionError, asyncio.IncompleteReadError):
        events = await _events(target, request)
    arrivals_s, text = read_events(target.api, events)
    return Answer(sent_s, arrivals_s, text)


async def _events(target: Target, request: bytes) -> list[tuple[float, bytes]]:
    """Each event's arrival and bytes. Raises ConnectionError or IncompleteReadError only if no answer began."""
    address = urlsplit(target.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port or 80)
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            rest = await reader.read()
            raise LoadError((head.split(b"\r\n", 1)[0] + b" " + rest[-_SHOWN_CHARACTERS:]).decode(errors="replace"))
        events: list[tuple[float, bytes]] = []
        text = b""
        try:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                text += (await reader.readexactly(size + 2))[:-2]
                *whole, text = text.split(_EVENT_END)
                now_s = time.perf_counter()
                events += [(now_s, event) for event in whole]
        except (ConnectionError, asyncio.IncompleteReadError, ValueError) as error:
            raise LoadError(f"the stream broke off after {len(events)} events: {error}") from error
        return events
    finally:
        writer.close()


def read_events(api: Api, events: Sequence[tuple[float, bytes]]) -> tuple[list[float], str]:
    """When each token came, and the text. Raises LoadError for a stream that did not end well."""
    arrivals_s: list[float] = []
    pieces: list[str] = []
    usage: int | None = None
    has_ended = False
    last: Any = None
    for at_s, event in events:
        data = event.removeprefix(b"data:").strip()
        if not data or data == _DONE or event.startswith(b":"):
            continue
        last = json.loads(data)
        if "error" in last:
            raise LoadError(f"the stream ended with {json.dumps(last)[:_SHOWN_CHARACTERS]}")
        if api == "tgi":
            arrivals_s.append(at_s)
            if last.get("generated_text") is not None:
                pieces, has_ended = [last["generated_text"]], True
            continue
        usage = (last.get("usage") or {}).get("completion_tokens", usage)
        for choice in last.get("choices", ()):
            is_last = choice.get("finish_reason") is not None
            has_ended = has_ended or is_last
            # A special token has no text; the last event has none either where it only tells the end, which the usage
            # below settles, unless it is the only one.
            if choice.get("text") or not is_last or not arrivals_s:
                arrivals_s.append(at_s)
                pieces.append(choice.get("text") or "")
    if not has_ended or not arrivals_s:
        raise LoadError(f"the stream ended with {json.dumps(last)[:_SHOWN_CHARACTERS] if last else 'nothing'}")
    if usage is not None and usage != len(arrivals_s):
        arrivals_s = spread(arrivals_s, usage)
    return arrivals_s, "".join(pieces)
