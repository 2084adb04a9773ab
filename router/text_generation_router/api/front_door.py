"""What every request passes: lenient paths, HEAD, and errors that are always TGI's JSON."""

from __future__ import annotations

import re
from http import HTTPStatus

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from text_generation_router.api.answers import JsonResponse
from text_generation_router.api.disconnect import ClientDisconnected
from text_generation_router.errors import InternalError, Overloaded, QueueTimeout, RequestError, ShuttingDown

_SLASHES = re.compile("/{2,}")


class FrontDoor:
    """Collapses repeated slashes, drops a trailing one, and answers HEAD as GET: the server leaves out the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = _SLASHES.sub("/", scope["path"])
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            # A copy: the server looks at its own scope to know that HEAD has no body.
            scope = {**scope, "path": path.removesuffix("/") or "/", "method": method}
        await self._app(scope, receive, send)


def add_error_handlers(app: FastAPI) -> None:
    async def request_error(request: Request, error: Exception) -> Response:
        known = error if isinstance(error, RequestError) else InternalError()
        headers = {"retry-after": "1"} if isinstance(known, Overloaded | QueueTimeout | ShuttingDown) else None
        return _error(known.status, str(known), known.error_type, headers)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        phrase = HTTPStatus(error.status_code).phrase
        headers = {"allow": _allowed(app, request.scope["path"])} if error.status_code == 405 else None
        message = f"{phrase}: {request.scope['method']} {request.scope['path']}"
        return _error(error.status_code, message, phrase.lower().replace(" ", "_"), headers)

    async def hung_up(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # read by nobody

    app.add_exception_handler(RequestError, request_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(ClientDisconnected, hung_up)
    app.add_exception_handler(Exception, request_error)


def _error(status: int, message: str, error_type: str, headers: dict[str, str] | None = None) -> Response:
    return JsonResponse({"error": message, "error_type": error_type}, status_code=status, headers=headers)


def _allowed(app: FastAPI, path: str) -> str:
    methods = {
        method
        for route in app.routes
        if isinstance(route, Route) and route.path == path
        for method in route.methods or ()
    }
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))
