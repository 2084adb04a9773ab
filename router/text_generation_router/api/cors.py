"""Which web pages may call: cross-origin headers as TGI's server sends them, on every answer."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_VARY = (b"vary", b"origin, access-control-request-method, access-control-request-headers")
_PREFLIGHT = (
    (b"access-control-allow-methods", b"GET,POST"),
    # authorization is not in TGI's list: without it a page could not use an API key.
    (b"access-control-allow-headers", b"content-type,authorization"),
    (b"content-length", b"0"),
)


class Cors:
    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        """`origins` that may call, compared exactly; none: any."""
        self._app = app
        self._origins = frozenset(origin.encode() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = self._headers(scope["headers"])
        if scope["method"] == "OPTIONS":
            await send({"type": "http.response.start", "status": 200, "headers": [*headers, *_PREFLIGHT]})
            await send({"type": "http.response.body", "body": b""})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _headers(self, given: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        if not self._origins:
            return [(b"access-control-allow-origin", b"*"), _VARY]
        origin = next((value for name, value in given if name == b"origin"), None)
        return [(b"access-control-allow-origin", origin), _VARY] if origin in self._origins else [_VARY]
