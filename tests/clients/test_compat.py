"""Servers that answer as other generations of TGI did: the same text for every client, and what differs is heard of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.clients.asserting import refused
from tests.clients.clients import Caller, ChatCaller, ClientError, ClientProcess
from tests.clients.expected import MAX_INPUT_TOKENS, PROMPT, Expected, user
from tests.support.asking import prompt_of
from tests.support.servers import Server, serving

GENERATIONS = ("v3", "0.9")


@pytest.fixture(scope="module")
def servers(checkpoint: Path) -> Iterator[dict[str, Server]]:
    limits = ("--max-input-tokens", str(MAX_INPUT_TOKENS), "--max-total-tokens", "1000")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(serving("--model-id", str(checkpoint), *limits, "--compat", name))
            for name in GENERATIONS
        }


@pytest.fixture(params=GENERATIONS)
def imitating(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    return servers[request.param]


def test_the_text_is_the_same(caller: Caller, imitating: Server, expected: Expected) -> None:
    parameters = {"max_new_tokens": 20, "return_full_text": False}
    text = expected.greedy_text(PROMPT, 20)
    assert caller.generate(imitating.url, PROMPT, **parameters) == text
    assert caller.streamed_text(imitating.url, PROMPT, **parameters) == text


def test_a_refused_stream_is_a_validation_error(caller: Caller, imitating: Server) -> None:
    """Status 200 and an event."""
    with refused(caller, "validation", "`inputs` must have less than"):
        caller.stream(imitating.url, prompt_of(MAX_INPUT_TOKENS + 1), max_new_tokens=5)


def test_an_answer_is_the_same(chat_caller: ChatCaller, imitating: Server, expected: Expected) -> None:
    assert chat_caller.chat(imitating.url, user(PROMPT), max_tokens=20) == expected.chat_text(user(PROMPT), 20)


def test_a_refused_stream_of_a_chat_is_an_error(streaming_chat_caller: ChatCaller, imitating: Server) -> None:
    with refused(streaming_chat_caller, "validation in a stream", "`inputs` must have less than"):
        streaming_chat_caller.stream(imitating.url, user(prompt_of(MAX_INPUT_TOKENS)), max_tokens=5)


@pytest.mark.parametrize("name", ["huggingface_hub 0.36", "huggingface_hub 2"])
def test_what_is_not_said_means_something_else(
    processes: dict[str, ClientProcess], servers: dict[str, Server], server: Server, expected: Expected, name: str
) -> None:
    """huggingface_hub sends nothing that its user did not say."""

    def said_by(server: Server, **parameters: int) -> str:
        text: str = processes[name].call("generate", url=server.url, prompt=PROMPT, **parameters)["text"]
        return text

    text = expected.greedy_text(PROMPT, 5)
    assert said_by(server, max_new_tokens=5) == text
    assert said_by(servers["v3"], max_new_tokens=5) == PROMPT + text
    assert said_by(servers["0.9"]) == expected.greedy_text(PROMPT, 20)


@pytest.mark.parametrize("fields", [{"stop": "x"}, {"logit_bias": {"5": 1}}], ids=["stop", "logit_bias"])
def test_what_tgi_3_refused_from_openai(
    processes: dict[str, ClientProcess], servers: dict[str, Server], fields: dict[str, object]
) -> None:
    (name,) = fields
    with pytest.raises(ClientError, match=f"`{name}`") as caught:
        processes["openai"].call("chat", url=servers["v3"].url, messages=user(PROMPT), max_tokens=5, **fields)
    assert caught.value.kind == "openai.UnprocessableEntityError"
