"""Connections that take too much: too slow, too large, never reading; and what is left of them."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.router.api.scripted import new_shard, new_tokenizer
from tests.router.api.streams import exchange, open_request, wait_until
from tests.support.router_server import RouterServer, router_server
from text_generation_router.connections import LimitedProtocol

GOOD = json.dumps({"inputs": "capital", "parameters": {"max_new_tokens": 1}}).encode()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RouterServer]:
    monkeypatch.setattr(LimitedProtocol, "max_silence_s", 0.3)
    monkeypatch.setattr(LimitedProtocol, "max_unread_s", 0.3)
    with router_server(new_shard(tmp_path), new_tokenizer()) as running:
        yield running


def connect(server: RouterServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def closed_after_s(connection: socket.socket) -> float:
    began_s = time.monotonic()
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - began_s


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"POST /gener",
        b"POST /generate HTTP/1.1\r\nhost: x\r\nx-a",
        b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n",
        b'POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{"inputs": "',
    ],
)
def test_request_that_does_not_go_on_is_dropped(server: RouterServer, begun: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(begun)
        assert 0.2 < closed_after_s(connection) < 5
    assert exchange(server.port, b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").startswith(
        b"HTTP/1.1 200 "
    )


def test_head_must_arrive_within_the_time_however_it_trickles(server: RouterServer) -> None:
    with connect(server) as connection:
        began_s = time.monotonic()
        connection.sendall(b"GET /health HTTP/1.1\r\nx: ")
        connection.settimeout(0.05)
        while time.monotonic() - began_s < 5:
            try:
                connection.sendall(b"y")
                if not connection.recv(1):
                    break
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                break
        assert time.monotonic() - began_s < 3


def test_body_may_take_longer_as_long_as_it_comes(server: RouterServer) -> None:
    with connect(server) as connection:
        head = f"POST /generate HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(GOOD)}\r\n\r\n"
        connection.sendall(head.encode())
        for place in range(0, len(GOOD), 10):
            connection.sendall(GOOD[place : place + 10])
            time.sleep(0.1)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (index, b"y" * 1000) for index in range(2000)),
        b"GET /health HTTP/1.1\r\nx: " + b"y" * 2_000_000,
        b"GET /" + b"y" * 2_000_000,
    ],
)
def test_endless_head_is_refused(server: RouterServer, head: bytes) -> None:
    with connect(server) as connection:
        answer = b""
        try:
            for place in range(0, len(head), 50_000):
                connection.sendall(head[place : place + 50_000])
                time.sleep(0.005)
            answer = connection.recv(1 << 16)
        except (ConnectionResetError, BrokenPipeError):
            return  # refused while it was still talking
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert json.loads(answer.split(b"\r\n\r\n")[1])["error"] == "Request head is larger than 65536 bytes"


def test_large_bodies_and_many_requests_on_a_connection_are_no_large_head(server: RouterServer) -> None:
    body = GOOD.ljust(1_000_000)
    head = f"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    one = f"{head}\r\n".encode() + body
    last = f"{head}connection: close\r\n\r\n".encode() + body
    assert exchange(server.port, one * 3 + last).count(b"HTTP/1.1 200 ") == 4


@pytest.mark.parametrize(
    "request_bytes", [b"\x00\x01\x02\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n", b"CONNECT a:1 HTTP/1.1\r\n\r\n"]
)
def test_what_is_not_http_is_400_in_json(server: RouterServer, request_bytes: bytes) -> None:
    answer = exchange(server.port, request_bytes)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.split(b"\r\n\r\n")[1]) == {
        "error": "Invalid HTTP request received.",
        "error_type": "validation",
    }


def test_stream_that_nobody_reads_ends_and_frees_everything(server: RouterServer) -> None:
    """The answer's events do not gather in memory: they are not even made while the buffers are full."""
    body: dict[str, Any] = {"inputs": "long", "parameters": {"max_new_tokens": 800, "top_n_tokens": 5}}
    connections = []
    for _ in range(4):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(10)
        connection.connect(("127.0.0.1", server.port))
        data = json.dumps(body).encode()
        connection.sendall(
            f"POST /generate_stream HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data
        )
        connections.append(connection)
    server.run(server.app.wait_idle)
    for connection in connections:
        connection.close()
    wait_until(lambda: server.replica.stats().blocks.owned == 0)


def test_stopping_does_not_wait_for_an_upload_that_stalls(tmp_path: Path) -> None:
    began_s = 0.0
    with router_server(new_shard(tmp_path), new_tokenizer()) as server:
        connection = connect(server)
        connection.sendall(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
        idle = open_request(server.port, "/generate", {"inputs": "x", "parameters": {"max_new_tokens": 1}})
        assert idle.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        server.run(server.app.wait_idle)
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 15
    connection.close()
    idle.close()
