"""What tests of several kinds of clients ask in the same words."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.clients.clients import Caller, ChatCaller, ClientError
from tests.clients.expected import PROMPT
from tests.support.asking import client_of
from tests.support.servers import Server

DROPPED = 'tgi_request_failure{err="dropped"}'


@contextmanager
def refused(caller: Caller | ChatCaller, what: str, message: str) -> Iterator[None]:
    """The client raises its class for `what`, with this in its message."""
    with pytest.raises(ClientError) as caught:
        yield
    assert caught.value.kind == caller.error(what)
    assert message in caught.value.message


@contextmanager
def occupied(server: Server) -> Iterator[None]:
    """The only place of `server` is taken by a request that outlasts the block, after which the place is free again."""
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 15_000}}
    with client_of(server) as client, client.stream("POST", "/generate_stream", json=body) as running:
        lines = running.iter_lines()  # hangs up when it is collected
        next(lines)
        yield
    wait_until_idle(server)


def wait_until_idle(server: Server, within_s: float = 5.0) -> None:
    deadline_s = time.monotonic() + within_s
    while server.metric("tgi_batch_current_size") > 0:
        assert time.monotonic() < deadline_s, f"a request still runs after {within_s:g} s"
        time.sleep(0.02)
