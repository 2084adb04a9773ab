"""Questions to a running server over /generate and /generate_stream, and what came back, by ids and numbers."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.servers import Server

# No two of these are merged into one token by the tokenizer of tests.support.checkpoints.
_LONE_CHARACTERS = "0123456789BCDEGHJKLMNQRSUVXYZ"
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Answer:
    ids: list[int]
    logprobs: list[float]
    text: str
    finish_reason: str
    seed: int | None


def prompt_of(num_tokens: int, seed: int = 0) -> str:
    """A text of exactly so many tokens for a tiny checkpoint."""
    return "".join(random.Random(seed * 1000 + num_tokens).choices(_LONE_CHARACTERS, k=num_tokens))


def client_of(server: Server) -> httpx.Client:
    """For many requests at once, from any thread. trust_env: a proxy of the machine is not for 127.0.0.1."""
    limits = httpx.Limits(max_connections=None)
    return httpx.Client(base_url=server.url, timeout=_TIMEOUT_S, trust_env=False, limits=limits)


def ask(client: httpx.Client, inputs: str, **parameters: Any) -> Answer:
    response = client.post("/generate", json={"inputs": inputs, "parameters": {"details": True, **parameters}})
    assert response.status_code == 200, response.text
    body = response.json()
    details = body["details"]
    return Answer(
        ids=[token["id"] for token in details["tokens"]],
        logprobs=[token["logprob"] for token in details["tokens"]],
        text=body["generated_text"],
        finish_reason=details["finish_reason"],
        seed=details["seed"],
    )


def events_of(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The events of a stream as they arrive."""
    for line in response.iter_lines():
        if line.startswith("data:"):
            yield json.loads(line.removeprefix("data:"))


def stream(client: httpx.Client, inputs: str, **parameters: Any) -> Generator[dict[str, Any], None, None]:
    """The events of one streamed answer; closing them hangs up."""
    body = {"inputs": inputs, "parameters": {"details": True, **parameters}}
    with client.stream("POST", "/generate_stream", json=body) as response:
        if response.status_code != 200:
            response.read()
        assert response.status_code == 200, response.text
        yield from events_of(response)


def ask_stream(client: httpx.Client, inputs: str, **parameters: Any) -> Answer:
    """The same as `ask` by a stream, whose events must be numbered without a gap."""
    events = list(stream(client, inputs, **parameters))
    assert all("token" in event for event in events), events[-1]
    assert [event["index"] for event in events] == list(range(1, len(events) + 1))
    last = events[-1]
    return Answer(
        ids=[event["token"]["id"] for event in events],
        logprobs=[event["token"]["logprob"] for event in events],
        text=last["generated_text"],
        finish_reason=last["details"]["finish_reason"],
        seed=last["details"]["seed"],
    )


@dataclass(frozen=True)
class Question:
    inputs: str
    parameters: Mapping[str, Any]
    delay_s: float = 0.0  # after the first one


def ask_at_once(server: Server, questions: Sequence[Question], *, streamed: bool = False) -> list[Answer]:
    """Send every question after its own delay without waiting for others. Returns: the answers in the same order."""
    began_s = time.monotonic()
    with client_of(server) as client, ThreadPoolExecutor(len(questions)) as pool:

        def ask_one(question: Question) -> Answer:
            time.sleep(max(0.0, question.delay_s - (time.monotonic() - began_s)))
            return (ask_stream if streamed else ask)(client, question.inputs, **question.parameters)

        return list(pool.map(ask_one, questions))
