"""The API key: who may POST. One place for all routes, those to come included."""

from __future__ import annotations

import hmac
from hashlib import sha256

from starlette.types import ASGIApp, Receive, Scope, Send

from text_generation_router.api.answers import JsonResponse
from text_generation_router.errors import Unauthorized


class ApiKeyGuard:
    """Answers 401 to a POST without `Authorization: Bearer KEY`; other methods generate nothing and pass."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = sha256(api_key.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or self._is_allowed(scope["headers"]):
            await self._app(scope, receive, send)
            return
        error = Unauthorized()
        answer = JsonResponse(
            {"error": str(error), "error_type": error.error_type},
            status_code=error.status,
            headers={"www-authenticate": "Bearer"},
        )
        await answer(scope, receive, send)

    def _is_allowed(self, headers: list[tuple[bytes, bytes]]) -> bool:
        given = next((value for name, value in headers if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        # Digests are compared, in constant time: the key's length does not show either.
        return scheme.lower() == b"bearer" and hmac.compare_digest(sha256(key.strip(b" ")).digest(), self._expected)
