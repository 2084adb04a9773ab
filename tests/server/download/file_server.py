"""A local HTTP server that serves files as hubs do: by ranges, with refusals, and with connections that break.

Subclasses speak one hub's addresses. It runs on a thread, on a port that the system picks.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class SeenRequest:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]


@dataclass
class Repository:
    files: dict[str, bytes]
    token: str | None = None  # needed to read it; None: public
    cut_after: dict[str, int] = field(default_factory=dict)  # bytes of a file that its next transfer breaks after


class FileServer:
    """Use as a context manager; `repositories` and `seen` may be looked at and changed while it runs."""

    def __init__(self, repositories: Mapping[str, Repository]) -> None:
        self.repositories = dict(repositories)
        self.seen: list[SeenRequest] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                owner._handle(self)

            def do_HEAD(self) -> None:
                owner._handle(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FileServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def transfers(self, name: str) -> list[SeenRequest]:
        """The GET requests for a file."""
        return [seen for seen in self.seen if seen.method == "GET" and self.is_transfer(seen, name)]

    def is_transfer(self, seen: SeenRequest, name: str) -> bool:
        raise NotImplementedError

    def answer(self, handler: BaseHTTPRequestHandler, seen: SeenRequest) -> None:
        raise NotImplementedError

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        headers = {name.lower(): value for name, value in handler.headers.items()}
        seen = SeenRequest(handler.command, url.path, query, headers)
        self.seen.append(seen)
        self.answer(handler, seen)

    def send_json(
        self, handler: BaseHTTPRequestHandler, content: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        self._send(handler, status, json.dumps(content).encode(), dict(headers or {}))

    def send_file(
        self, handler: BaseHTTPRequestHandler, repository: Repository, name: str, headers: Mapping[str, str]
    ) -> None:
        """Send a file or, as the request's Range says, its end; break off once if the repository says so."""
        content = repository.files[name]
        start = 0
        if given := handler.headers.get("Range"):
            start = int(given.removeprefix("bytes=").split("-")[0])
        sent = dict(headers)
        if start:
            sent["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut = repository.cut_after.pop(name, None) if handler.command == "GET" else None
        self._send(handler, 206 if start else 200, content[start:], sent, cut)

    def _send(
        self, handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str], cut: int | None = None
    ) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            handler.close_connection = True
