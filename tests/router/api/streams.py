"""Reading event streams, and talking to a server by bare sockets."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx


def events(body: bytes) -> list[dict[str, Any]]:
    """The objects of a native stream, whose framing is checked on the way."""
    *blocks, rest = body.split(b"\n\n")
    assert rest == b""
    for block in blocks:
        assert block.startswith(b"data: {")
        assert b"\n" not in block
        assert block.isascii()
    return [json.loads(block[len(b"data: ") :]) for block in blocks]


def stream(client: httpx.Client, prompt: str, **parameters: Any) -> list[dict[str, Any]]:
    answer = client.post("/generate_stream", json={"inputs": prompt, "parameters": parameters})
    assert answer.status_code == 200
    return events(answer.content)


def open_request(port: int, path: str, body: dict[str, Any]) -> socket.socket:
    """Send a POST and leave its answer unread."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    head = f"POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def exchange(port: int, request: bytes) -> bytes:
    """Send bytes, and read until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(request)
        answer = b""
        while data := connection.recv(1 << 16):
            answer += data
    return answer


def wait_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
