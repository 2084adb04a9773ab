"""Who may POST when there is a key, and what a browser is told."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from tests.router.api.scripted import new_shard, new_tokenizer
from tests.support.router_server import RouterServer, router_server

KEY = "s3cret kéy"
GOOD = {"inputs": "capital", "parameters": {"max_new_tokens": 1}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterServer]:
    shard = new_shard(tmp_path_factory.mktemp("shard"))
    with router_server(shard, new_tokenizer(), api_key=KEY, cors_allow_origin=("https://a.example",)) as running:
        yield running


@pytest.fixture
def client(server: RouterServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def paths(client: httpx.Client, method: str) -> list[str]:
    """Every path of the OpenAPI document that takes the method, with values for the places in it."""
    document = client.get("/api-doc/openapi.json").json()
    return [re.sub(r"\{[^}]*\}", "x", path) for path, item in document["paths"].items() if method in item]


def key_header(value: bytes) -> dict[bytes, bytes]:
    return {b"authorization": value}


RIGHT = [b"Bearer " + KEY.encode(), b"bearer " + KEY.encode(), b"BEARER  " + KEY.encode()]
WRONG = [
    b"",
    b"Bearer",
    b"Bearer " + KEY.upper().encode(),
    b"Bearer " + KEY.encode()[:-1],
    b"Bearer " + KEY.encode() + b"x",
    b"Basic " + KEY.encode(),
    KEY.encode(),
    b"\xff\xfe",
]


def test_every_post_needs_the_key(client: httpx.Client) -> None:
    """G45."""
    posts = paths(client, "post")
    assert {"/", "/generate", "/generate_stream", "/tokenize"} <= set(posts)
    for path in [*posts, "/nowhere", "//generate", "/generate/"]:
        answer = client.post(path, json=GOOD)
        assert answer.status_code == 401
        assert answer.json() == {"error": "Unauthorized", "error_type": "unauthorized"}
        assert answer.headers["www-authenticate"] == "Bearer"
        # With the key each says what it says without any.
        assert client.post(path, json=GOOD, headers=key_header(RIGHT[0])).status_code != 401


@pytest.mark.parametrize("value", WRONG)
def test_wrong_key_is_no_key(client: httpx.Client, value: bytes) -> None:
    assert client.post("/generate", json=GOOD, headers=key_header(value)).status_code == 401


@pytest.mark.parametrize("value", RIGHT)
def test_scheme_is_compared_in_any_case(client: httpx.Client, value: bytes) -> None:
    answer = client.post("/generate", json=GOOD, headers=key_header(value))
    assert (answer.status_code, answer.json()) == (200, {"generated_text": " the"})


def test_routes_that_generate_nothing_are_open(client: httpx.Client) -> None:
    """G45."""
    for path in paths(client, "get"):
        assert client.get(path).status_code in {200, 404}
    for path in ("/docs", "/api-doc/openapi.json"):
        assert client.get(path).status_code == 200


def test_body_is_not_read_without_the_key(client: httpx.Client) -> None:
    answer = client.post("/generate", content=b"x" * 3_000_000)
    assert answer.status_code == 401
    assert client.post("/generate", json=GOOD, headers=key_header(RIGHT[0])).status_code == 200


def test_preflight_needs_no_key_and_allows_one(client: httpx.Client) -> None:
    answer = client.options(
        "/v1/chat/completions",
        headers={
            "origin": "https://a.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        },
    )
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["access-control-allow-origin"] == "https://a.example"
    assert answer.headers["access-control-allow-methods"].split(",") == ["GET", "POST"]
    assert answer.headers["access-control-allow-headers"].split(",") == ["content-type", "authorization"]
    assert answer.headers["vary"] == "origin, access-control-request-method, access-control-request-headers"


def test_only_named_origins_are_echoed(client: httpx.Client) -> None:
    # 401 included: a page must be able to read why it was refused.
    for path in ("/info", "/generate", "/nowhere"):
        for origin in ("https://a.example", "https://b.example", "https://a.example.evil", "HTTPS://A.EXAMPLE", ""):
            answer = client.request("POST" if path == "/generate" else "GET", path, headers={"origin": origin})
            expected = origin if origin == "https://a.example" else None
            assert answer.headers.get("access-control-allow-origin") == expected
            assert answer.headers["vary"] == "origin, access-control-request-method, access-control-request-headers"


def test_any_origin_may_call_unless_some_are_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    shard = new_shard(tmp_path_factory.mktemp("shard"))
    with router_server(shard, new_tokenizer()) as open_server, open_server.client() as client:
        # Without a key of our own, keys for others are ignored.
        answer = client.post("/generate_stream", json=GOOD, headers={"authorization": "Bearer hf_x"})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["vary"].startswith("origin, ")
