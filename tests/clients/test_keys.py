"""Clients that have the server's key, another one or none. The demo model shows that the answer is to the question."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.asserting import refused
from tests.clients.clients import Caller, ChatCaller
from tests.clients.expected import PROMPT, Expected, user
from tests.support.servers import Server, serving

KEY = "the-key-of-this-server"
QUESTION = "What is the capital of France?"
MESSAGE = "Unauthorized"
wrong_and_missing = pytest.mark.parametrize("given", [{"key": "another"}, {}], ids=["another key", "no key"])


@pytest.fixture(scope="module")
def locked() -> Iterator[Server]:
    """The demo model behind a key."""
    with serving("--api-key", KEY) as server:
        yield server


def test_with_the_key_a_text_is_completed(caller: Caller, locked: Server) -> None:
    text = caller.generate(locked.url, "The capital of France is", max_new_tokens=5, key=KEY)
    assert "Paris" in text
    assert caller.streamed_text(locked.url, "The capital of France is", max_new_tokens=5, key=KEY) == text


def test_with_the_key_a_question_is_answered(chat_caller: ChatCaller, locked: Server) -> None:
    assert chat_caller.chat(locked.url, user(QUESTION), max_tokens=20, key=KEY) == "The capital of France is Paris."
    if chat_caller.can_stream:
        pieces = chat_caller.stream(locked.url, user(QUESTION), max_tokens=20, key=KEY)
        assert "".join(pieces) == "The capital of France is Paris."


@wrong_and_missing
def test_without_the_key_no_text_is_completed(caller: Caller, locked: Server, given: dict[str, str]) -> None:
    """G45."""
    with refused(caller, "unauthorized", MESSAGE):
        caller.generate(locked.url, QUESTION, **given)
    with refused(caller, "unauthorized", MESSAGE):
        caller.stream(locked.url, QUESTION, **given)


@wrong_and_missing
def test_without_the_key_no_question_is_answered(
    chat_caller: ChatCaller, locked: Server, given: dict[str, str]
) -> None:
    message = chat_caller.seen(MESSAGE, 401)
    with refused(chat_caller, "unauthorized", message):
        chat_caller.chat(locked.url, user(QUESTION), **given)
    if chat_caller.sees_refused_streams:
        with refused(chat_caller, "unauthorized", message):
            chat_caller.stream(locked.url, user(QUESTION), **given)


def test_a_server_without_a_key_ignores_one(caller: Caller, server: Server, expected: Expected) -> None:
    assert caller.generate(server.url, PROMPT, max_new_tokens=5, key="any") == expected.greedy_text(PROMPT, 5)


def test_a_chat_with_a_server_without_a_key_ignores_one(
    chat_caller: ChatCaller, server: Server, expected: Expected
) -> None:
    assert chat_caller.chat(server.url, user(PROMPT), max_tokens=5, key="any") == expected.chat_text(user(PROMPT), 5)
