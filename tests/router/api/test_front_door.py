"""Paths, methods and bodies as clients really send them; errors are always TGI's JSON."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.router.api.streams import exchange
from tests.support.router_server import RouterServer

GOOD = {"inputs": "capital", "parameters": {"max_new_tokens": 1}}


def error_of(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/json"
    content = answer.json()
    assert content.keys() == {"error", "error_type"}
    return str(content["error"])


@pytest.mark.parametrize("path", ["/generate/", "//generate", "///generate//", "/generate"])
def test_slashes_are_forgiven_without_a_redirect(server: RouterServer, path: str) -> None:
    data = json.dumps(GOOD).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
    answer = exchange(server.port, head.encode() + data)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b'{"generated_text":" the"}')


def test_double_slash_alone_is_the_root(server: RouterServer) -> None:
    assert exchange(server.port, b"GET // HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").startswith(
        b"HTTP/1.1 200 "
    )


@pytest.mark.parametrize("path", ["/", "/health", "/ping", "/info", "/metrics"])
def test_head_is_get_without_the_body(server: RouterServer, client: httpx.Client, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert head.status_code == get.status_code == 200
    assert head.headers.get("content-type") == get.headers.get("content-type")
    raw = exchange(server.port, f"HEAD {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    assert raw.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nope", 404, None),
        ("POST", "/generate/more", 404, None),
        ("GET", "/generate", 405, "POST"),
        ("HEAD", "/tokenize", 405, "POST"),
        ("DELETE", "/", 405, "GET, HEAD, POST"),
        ("POST", "/info", 405, "GET, HEAD"),
    ],
)
def test_unknown_paths_and_methods(
    client: httpx.Client, method: str, path: str, status: int, allow: str | None
) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.headers.get("allow") == allow
    if method != "HEAD":
        assert path in error_of(answer)


@pytest.mark.parametrize("content_type", ["application/json", "application/x-www-form-urlencoded", "text/plain", None])
def test_any_content_type_is_read_as_json(client: httpx.Client, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    assert client.post("/generate", content=json.dumps(GOOD), headers=headers).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b'{"inputs": "x"',
        b'{"inputs": "x", "parameters": {"temperature": NaN}}',
        b'{"inputs": "x", "parameters": {"temperature": Infinity}}',
        b'{"inputs": "\xff"}',
        b'{"inputs": "\\ud800"}',
        b"[" * 100_000,
    ],
)
def test_what_is_not_json_is_400(client: httpx.Client, body: bytes) -> None:
    answer = client.post("/generate", content=body)
    assert answer.status_code == 400
    assert error_of(answer).startswith("Failed to parse the request body as JSON: ")
    assert "at line 1 column " in error_of(answer)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b"{}", "inputs: Field required"),
        (b"[]", "body: "),
        (b"3", "body: "),
        (b'{"inputs": null}', "inputs: Input should be a valid string. Given: null"),
    ],
)
def test_other_shapes_are_422_and_name_the_field(client: httpx.Client, body: bytes, path: str) -> None:
    answer = client.post("/generate", content=body)
    assert answer.status_code == 422
    assert error_of(answer).startswith(f"Failed to deserialize the JSON body into the target type: {path}")


def test_a_long_wrong_value_is_not_repeated_in_full(client: httpx.Client) -> None:
    answer = client.post("/generate", json={"inputs": ["x" * 10_000]})
    assert len(error_of(answer)) < 250


def test_too_large_a_body_is_413_however_it_is_sent(server: RouterServer, client: httpx.Client) -> None:
    """G24."""
    body = json.dumps({"inputs": "x" * 3_000_000}).encode()
    answers = [client.post("/generate", content=body), client.post("/generate", content=iter([body[:10], body[10:]]))]
    for answer in answers:
        assert answer.status_code == 413
        assert "length limit exceeded (2000000 bytes, see --payload-limit)" in error_of(answer)
    assert client.post("/generate", json=GOOD).status_code == 200


def test_a_body_of_exactly_the_limit_is_read(client: httpx.Client) -> None:
    body = json.dumps(GOOD).encode().ljust(2_000_000)
    assert client.post("/generate", content=body).status_code == 200
    assert client.post("/generate", content=body + b" ").status_code == 413


def test_health_answers_while_a_huge_word_is_tokenized(server: RouterServer) -> None:
    """G24."""
    with server.client() as client, ThreadPoolExecutor() as threads:
        long = threads.submit(client.post, "/generate", json={"inputs": "a" * 1_900_000})
        longest = 0.0
        while not long.done():
            before = time.monotonic()
            assert client.get("/health").status_code == 200
            longest = max(longest, time.monotonic() - before)
        assert longest < 1
    assert long.result().status_code == 422
    assert "Given: 1900000 `inputs` tokens and 0 `max_new_tokens`" in error_of(long.result())


def test_expect_100_continue_is_answered(server: RouterServer) -> None:
    data = json.dumps(GOOD).encode()
    head = "POST /generate HTTP/1.1\r\nhost: x\r\nconnection: close\r\nexpect: 100-continue\r\n"
    answer = exchange(server.port, f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")


def test_browsers_may_send_json_and_keys(client: httpx.Client) -> None:
    preflight = client.options(
        "/generate",
        headers={
            "origin": "http://page",
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type,authorization",
        },
    )
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "*"
    answer = client.post("/generate", json=GOOD, headers={"origin": "http://page"})
    assert answer.headers["access-control-allow-origin"] == "*"
