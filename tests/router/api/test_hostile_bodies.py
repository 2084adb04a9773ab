"""Bodies that nobody means well with, on every route that reads one: an answer or a 4xx, in bounded time."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.router.api.scripted import new_shard, new_tokenizer
from tests.support.router_server import RouterServer, router_server

NUM_RANDOM_BODIES = 2000
MAX_S = 120.0  # on a busy machine; the most work is a million tokens of /tokenize, three seconds alone


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterServer]:
    shard = new_shard(tmp_path_factory.mktemp("shard"))
    shard.max_total_tokens = 32  # what is found valid by accident should not take long
    with router_server(shard, new_tokenizer()) as running:
        yield running


class Connection:
    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=MAX_S)

    def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        self._connection.request("POST", path, body, {"content-type": "application/json"})
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def connection(server: RouterServer) -> Iterator[Connection]:
    connection = Connection(server.port)
    yield connection
    connection.close()


@dataclass(frozen=True)
class Route:
    path: str
    statuses: frozenset[int]  # that the document names


@pytest.fixture(scope="module")
def posts(server: RouterServer) -> list[Route]:
    with server.client() as client:
        document = client.get("/api-doc/openapi.json").json()
    found = [
        Route(path, frozenset(map(int, item["post"]["responses"])))
        for path, item in document["paths"].items()
        if "post" in item
    ]
    assert len(found) == 9
    return found


def check(route: Route, status: int, body: bytes) -> None:
    path = route.path
    assert status in route.statuses, (path, status, body[:500])
    assert status < 500, (path, status, body[:500])
    if status != 200:
        assert json.loads(body).keys() == {"error", "error_type"}, (path, status, body[:500])


def random_bodies(count: int) -> Iterator[bytes]:
    """Plain noise, and JSON with noise in it, which gets further."""
    noise = random.Random(20260108)
    for index in range(count):
        data = noise.randbytes(noise.randrange(0, 200))
        if index % 2:
            valid = json.dumps(
                {
                    "inputs": "x",
                    "messages": [{"role": "user", "content": "x"}],
                    "prompt": "x",
                    "max_tokens": 1,
                    "parameters": {"max_new_tokens": 1},
                }
            ).encode()
            place = noise.randrange(len(valid))
            data = valid[:place] + data[: noise.randrange(4)] + valid[place + noise.randrange(3) :]
        yield data


def test_random_bytes(connection: Connection, posts: list[Route]) -> None:
    served = 0
    for route in posts:
        for body in random_bodies(NUM_RANDOM_BODIES):
            status, answer = connection.post(route.path, body)
            check(route, status, answer)
            served += status == 200
    assert served > 100  # not all are refused at the door


def wherever_text_belongs(value: Any) -> dict[str, Any]:
    return {
        "inputs": value,
        "prompt": value,
        "messages": [{"role": "user", "content": value}],
        "instances": [{"inputs": value}],
        "parameters": {"max_new_tokens": 1},
        "max_tokens": 1,
    }


def nested(depth: int, opening: str, closing: str) -> bytes:
    text = opening * depth + "1" + closing * depth
    fields = ("inputs", "prompt", "messages", "instances", "grammar", "tools", "response_format", "logit_bias", "stop")
    names = ",".join(f'"{name}":{text}' for name in fields)
    return f'{{{names},"parameters":{{"grammar":{{"type":"json","value":{text}}}}}}}'.encode()


def many(item: str, count: int, *fields: str) -> bytes:
    items = "[" + ",".join([item] * count) + "]"
    return ("{" + ",".join(f'"{field}":{items}' for field in fields) + f',"parameters":{{"stop":{items}}}}}').encode()


BODIES = {
    "NUL": json.dumps(wherever_text_belongs("a\0b")).encode(),
    "lone surrogate": json.dumps(wherever_text_belongs("a\ud800b")).encode(),
    "surrogates the wrong way round": json.dumps(wherever_text_belongs("\udc00\ud800")).encode(),
    "1 MB of one character": json.dumps({**wherever_text_belongs(""), "inputs": "a" * 1_000_000}).encode(),
    "1 MB of one character, chat": json.dumps({"messages": [{"role": "user", "content": "a" * 1_000_000}]}).encode(),
    "1 MB of spaces": json.dumps({"inputs": " " * 1_000_000, "prompt": " " * 100_000}).encode(),
    "100 kB of emoji": json.dumps(wherever_text_belongs("😀" * 8_000), ensure_ascii=False).encode(),
    "lists in lists, as deep as is read": nested(500, "[", "]"),
    "lists in lists, deeper": nested(50_000, "[", "]"),
    "objects in objects, as deep as is read": nested(500, '{"a":', "}"),
    "objects in objects, deeper": nested(50_000, '{"a":', "}"),
    "texts in schemas": nested(300, '{"properties":{"a":', "}}"),
    "many wrong numbers": many("1", 160_000, "messages", "prompt", "stop", "tools", "instances"),
    "many empty objects": many("{}", 80_000, "messages", "prompt", "stop", "tools", "instances"),
    "many messages": many('{"role":"user","content":"x"}', 30_000, "messages", "instances"),
    "many biases": json.dumps(
        {**wherever_text_belongs("x"), "logit_bias": {str(i): "x" for i in range(90_000)}}
    ).encode(),
    "the same key again and again": b"{" + b'"inputs":"x",' * 100_000 + b'"inputs":"x"}',
    "a long number": b'{"inputs":"x","parameters":{"seed":' + b"9" * 1_000_000 + b"}}",
    "a huge exponent": b'{"inputs":"x","parameters":{"temperature":1e999999999}}',
    "huge counts": json.dumps(
        {**wherever_text_belongs("x"), "n": 10**18, "best_of": 10**18, "top_logprobs": 10**9}
    ).encode(),
}


@pytest.mark.parametrize("name", BODIES)
def test_hostile_body(server: RouterServer, connection: Connection, posts: list[Route], name: str) -> None:
    for route in posts:
        began_s = time.monotonic()
        check(route, *connection.post(route.path, BODIES[name]))
        assert time.monotonic() - began_s < MAX_S, route.path
    with server.client() as client:
        assert client.get("/health").status_code == 200
