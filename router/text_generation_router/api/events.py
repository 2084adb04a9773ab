"""Server-sent events: how a token looks in one, and a response that sends them as they come.

Written by hand with the encoder of `json`, which escapes everything that is not ASCII in C: clients split lines at
U+0085, U+2028 and U+2029, which orjson leaves as they are.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from json.encoder import encode_basestring_ascii as quoted

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from text_generation_router.api.disconnect import ClientDisconnected, until_disconnect
from text_generation_router.errors import InternalError, RequestError
from text_generation_router.generation import Ending, Piece
from text_generation_router.scheduling.request import TokenNumbers
from text_generation_router.transcript import Token

KEEP_ALIVE_S = 15.0
_COMMENT = b":\n\n"
_TOKEN = '{"id":%d,"text":%s,' + "".join(f'"{name}":%s,' for name in TokenNumbers._fields) + '"special":%s}'


def token_event(index: int, piece: Piece, *, details: bool, prompt: str, prefix: str = "data: ") -> bytes:
    """The event of one token.

    Args:
        index: from 1.
        details: whether the last event has them.
        prompt: put before the generated text.
        prefix: of the event's line.
    """
    head = f'{prefix}{{"index":{index},"token":{_token_json(piece.token)}'
    if piece.top_tokens:
        head += f',"top_tokens":[{",".join(map(_token_json, piece.top_tokens))}]'
    ending = piece.ending
    if ending is None:
        return f'{head},"generated_text":null,"details":null}}\n\n'.encode("ascii")
    text = quoted(prompt + ending.generated_text)
    shown = _details_json(ending) if details else "null"
    return f'{head},"generated_text":{text},"details":{shown}}}\n\n'.encode("ascii")


def error_event(error: RequestError, prefix: str = "data: ") -> bytes:
    content = json.dumps({"error": str(error), "error_type": error.error_type})
    return f"{prefix}{content}\n\n".encode("ascii")


def _token_json(token: Token) -> str:
    special = "true" if token.special else "false"
    return _TOKEN % (token.token_id, quoted(token.text), *map(_number_json, token.numbers), special)


def _number_json(value: float | None) -> str:
    return "null" if value is None or not math.isfinite(value) else repr(value)


def _details_json(ending: Ending) -> str:
    return json.dumps(
        {
            "finish_reason": ending.finish_reason.value,
            "generated_tokens": ending.generated_tokens,
            "seed": ending.seed,
            "input_length": ending.input_length,
        },
        separators=(",", ":"),
    )


class EventStream(Response):
    """Sends events until they end, fail, or the client hangs up.

    The status is sent with the first event, or with the first keep-alive: an error before that is raised, so that it
    gets a status of its own, unless `errors_in_streams`; a later one becomes the last event.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        keep_alive_s: float = KEEP_ALIVE_S,
        *,
        event_prefix: str = "data: ",
        errors_in_streams: bool = False,
        error_event: Callable[[RequestError, str], bytes] = error_event,
    ) -> None:
        """
        Args:
            events: closed when the response ends, however it ends.
            error_event: how the route ends a stream that fails; it gets the error and `event_prefix`.
        """
        self.status_code = 200
        self.background = None
        self._events = events
        self._error_event = error_event
        self._keep_alive_s = keep_alive_s
        self._event_prefix = event_prefix
        self._errors_in_streams = errors_in_streams
        self._started = False
        self._last_sent_s = time.monotonic()
        self.init_headers(
            {
                "content-type": "text/event-stream",
                "cache-control": "no-cache",
                "x-accel-buffering": "no",
                **headers,
            }
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._send_all(send))
        except ClientDisconnected:
            return

    async def _send_all(self, send: Send) -> None:
        keep_alive = asyncio.ensure_future(self._keep_alive(send))
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    await self._send(send, event)
        except RequestError as error:
            if not self._started and not self._errors_in_streams:
                raise
            await self._send(send, self._error_event(error, self._event_prefix))
        except Exception:
            if self._started:
                await self._send(send, self._error_event(InternalError(), self._event_prefix))
            raise
        finally:
            keep_alive.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        self._last_sent_s = time.monotonic()
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _keep_alive(self, send: Send) -> None:
        while True:
            silence_s = time.monotonic() - self._last_sent_s
            if silence_s >= self._keep_alive_s:
                await self._send(send, _COMMENT)
            else:
                await asyncio.sleep(self._keep_alive_s - silence_s)
