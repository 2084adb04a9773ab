"""A shard is killed while every client waits for it: each hears of it in its own words, and none hangs."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tests.clients.clients import CLIENTS, Caller, ChatCaller, ClientError, ClientProcess, Way
from tests.clients.expected import PROMPT, user
from tests.support.servers import Server, serving

# A client's process makes one call at a time, so those that could be asked in both ways are divided among them.
COMPLETING = ("text-generation", "langchain-community", "huggingface_hub 0.36", "llama-index-huggingface-api")
CHATTING = ("langchain-huggingface", "huggingface_hub 2", "llama-index-tgi", "openai")
ALL = (*COMPLETING, *CHATTING)

MAX_TOKENS = 15_000  # so many take longer than any test
START_S, END_S = 30.0, 10.0


@pytest.mark.parametrize("streamed", [False, True], ids=["whole answers", "streams"])
def test_every_client_hears_that_a_shard_is_lost(
    processes: dict[str, ClientProcess], endless_checkpoint: Path, streamed: bool
) -> None:
    # Only the asynchronous one of each pair can stream in all of them.
    way: Way = "async" if streamed else "sync"
    what = "lost shard in a stream" if streamed else "lost shard"
    callers: dict[str, Caller | ChatCaller] = {
        **{name: Caller(CLIENTS[name], way, processes[name]) for name in COMPLETING},
        **{name: ChatCaller(CLIENTS[name], way, processes[name]) for name in CHATTING},
    }
    with (
        ThreadPoolExecutor(len(ALL)) as pool,  # left last: without a server, no call can wait for ever
        serving("--model-id", str(endless_checkpoint), "--max-total-tokens", "20000") as server,
    ):
        calls = {name: pool.submit(ask, caller, server, streamed=streamed) for name, caller in callers.items()}
        wait_until_running(server, len(ALL))
        server.shards()[0].kill()
        wait(calls.values(), timeout=END_S)
        assert [name for name, call in calls.items() if not call.done()] == []
        heard = {name: call.exception() for name, call in calls.items()}
    assert {name: kind_of(error) for name, error in heard.items()} == {
        name: caller.error(what) for name, caller in callers.items()
    }


def ask(caller: Caller | ChatCaller, server: Server, *, streamed: bool) -> object:
    if isinstance(caller, Caller):
        complete = caller.stream if streamed else caller.generate
        return complete(server.url, PROMPT, max_new_tokens=MAX_TOKENS)
    chat = caller.stream if streamed else caller.chat
    return chat(server.url, user(PROMPT), max_tokens=MAX_TOKENS)


def wait_until_running(server: Server, number: int) -> None:
    deadline_s = time.monotonic() + START_S
    while server.metric("tgi_batch_current_size") < number:
        assert time.monotonic() < deadline_s, f"fewer than {number} requests run after {START_S:g} s"
        time.sleep(0.05)


def kind_of(error: BaseException | None) -> str:
    assert isinstance(error, ClientError), f"{error!r} is not the client's"
    return error.kind
