"""What one HTTP connection may cost: uvicorn's protocol with limits that it does not have.

A client that sends its request too slowly, sends endless headers, or does not read its answer loses its connection. To
the route that is a hang-up like any other, so that all that the request holds is given back.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from text_generation_router.api.answers import JsonResponse


class LimitedProtocol(HttpToolsProtocol):
    # Request line and headers. The parser has no bound of its own.
    max_head_bytes = 64 * 1024
    # The whole head must arrive within so long, and then each next piece of the body.
    max_silence_s = 30.0
    # So long may an answer lie in full buffers. A reader that is merely slow makes room within it.
    max_unread_s = 60.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._in_head = False
        self._head_bytes = 0  # of the head so far, less the piece in which it began
        self._head_began_now = False
        self._silence: asyncio.TimerHandle | None = None  # set while a request is incomplete
        self._unread: asyncio.TimerHandle | None = None  # set while the client takes nothing

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._restart_silence()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_silence()
        self._end_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_began_now = False
        super().data_received(data)
        if self._in_head and not self._head_began_now:
            self._head_bytes += len(data)
            if self._head_bytes > self.max_head_bytes:
                self._refuse(431, f"Request head is larger than {self.max_head_bytes} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_began_now, self._head_bytes = True, True, 0
        self._restart_silence()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._restart_silence()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._end_silence()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._end_unread()
        self._unread = self.loop.call_later(self.max_unread_s, self._drop)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_unread()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        """Answer without a route, in the form that all errors have, and close."""
        if self.transport.is_closing():
            return
        answer = JsonResponse({"error": message, "error_type": "validation"}, headers={"connection": "close"})
        lines = [b"HTTP/1.1 %d \r\n" % status, *(b"%s: %s\r\n" % header for header in answer.raw_headers), b"\r\n"]
        self.transport.write(b"".join(lines) + bytes(answer.body))
        self.transport.close()

    def _restart_silence(self) -> None:
        self._end_silence()
        self._silence = self.loop.call_later(self.max_silence_s, self._silence_over)

    def _end_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _end_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _silence_over(self) -> None:
        if self.flow.read_paused:  # it is we who do not listen
            self._restart_silence()
        else:
            self._drop()

    def _drop(self) -> None:
        # Not `close`, which first waits until all that is buffered has been taken.
        self.transport.abort()


def server_config(app: ASGIApp, **options: Any) -> uvicorn.Config:
    """How HTTP is served. `options` are further ones of uvicorn's."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=LimitedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        # When all answers are out: how long a connection may still take to end before it is cut.
        timeout_graceful_shutdown=5,
        **options,
    )
