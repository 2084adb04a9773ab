"""What every client of the chat route is for: answers to conversations, whole or piece by piece, and its own errors."""

from __future__ import annotations

import pytest

from tests.clients.asserting import DROPPED, occupied, refused, wait_until_idle
from tests.clients.clients import ChatCaller
from tests.clients.expected import (
    CHAT_PROMPTS,
    MAX_INPUT_TOKENS,
    MULTI_BYTE_PROMPT,
    NUM_CHAT_TOKENS,
    PROMPT,
    Expected,
    user,
)
from tests.support.asking import prompt_of
from tests.support.servers import Server

CONVERSATION = [
    {"role": "system", "content": "Answer in one word."},
    {"role": "user", "content": MULTI_BYTE_PROMPT},
    {"role": "assistant", "content": "日本語"},
    {"role": "user", "content": PROMPT},
]


def test_prompts_are_what_their_names_say(expected: Expected) -> None:
    texts = "".join(expected.chat_text(user(prompt)) for prompt in CHAT_PROMPTS)
    assert all(character in texts for character in ("中", "국", "\u2028", "\ufffd"))


@pytest.mark.parametrize("prompt", CHAT_PROMPTS)
def test_an_answer_is_that_of_transformers(
    chat_caller: ChatCaller, server: Server, expected: Expected, prompt: str
) -> None:
    """G43."""
    messages = user(prompt)
    assert chat_caller.chat(server.url, messages, max_tokens=NUM_CHAT_TOKENS) == expected.chat_text(messages)


def test_a_conversation_with_a_system_message(chat_caller: ChatCaller, server: Server, expected: Expected) -> None:
    assert chat_caller.chat(server.url, CONVERSATION, max_tokens=30) == expected.chat_text(CONVERSATION, 30)


@pytest.mark.parametrize("prompt", CHAT_PROMPTS)
def test_streamed_pieces_are_the_whole_answer(
    streaming_chat_caller: ChatCaller, server: Server, expected: Expected, prompt: str
) -> None:
    """G17 and G43."""
    pieces = streaming_chat_caller.stream(server.url, user(prompt), max_tokens=NUM_CHAT_TOKENS)
    assert len(pieces) > NUM_CHAT_TOKENS / 2
    text = expected.chat_text(user(prompt))
    if streaming_chat_caller.drops_last:
        shown = "".join(pieces)
        assert text.startswith(shown)
        assert len(text) - len(shown) <= 4  # what the last token adds
    else:
        assert "".join(pieces) == text


def test_a_stop_string_ends_the_answer_and_is_not_shown(
    chat_caller: ChatCaller, server: Server, expected: Expected
) -> None:
    """G01."""
    text = expected.chat_text(user(PROMPT))
    stop = [text[20:23], "never"]
    end = text.index(stop[0])
    assert chat_caller.chat(server.url, user(PROMPT), stop=stop, max_tokens=NUM_CHAT_TOKENS) == text[:end]
    if chat_caller.can_stream:
        pieces = chat_caller.stream(server.url, user(PROMPT), stop=stop, max_tokens=NUM_CHAT_TOKENS)
        assert "".join(pieces) == text[:end]


def test_a_seed_gives_the_answer_again(chat_caller: ChatCaller, server: Server) -> None:
    def sample(seed: int) -> str:
        return chat_caller.chat(server.url, user(PROMPT), seed=seed, temperature=0.9, max_tokens=20)

    assert sample(7) == sample(7) != sample(8)


def test_a_prompt_that_is_too_long_is_refused(chat_caller: ChatCaller, server: Server, expected: Expected) -> None:
    messages = user(prompt_of(MAX_INPUT_TOKENS))
    length = len(expected.chat_ids(messages))
    message = f"`inputs` must have less than {MAX_INPUT_TOKENS} tokens. Given: {length}"
    with refused(chat_caller, "validation", chat_caller.seen(message, 422)):
        chat_caller.chat(server.url, messages, max_tokens=5)
    if chat_caller.sees_refused_streams:
        with refused(chat_caller, "validation", chat_caller.seen(message, 422)):
            chat_caller.stream(server.url, messages, max_tokens=5)


def test_an_unknown_route_is_not_found(chat_caller: ChatCaller, server: Server) -> None:
    message = chat_caller.seen("Not Found: POST /nope/v1/chat/completions", 404)
    with refused(chat_caller, "not found", message):
        chat_caller.chat(f"{server.url}/nope", user(PROMPT))


def test_a_full_server_is_an_overload_error(chat_caller: ChatCaller, one_place: Server) -> None:
    """G11."""
    message = chat_caller.seen("Model is overloaded", 429)
    with occupied(one_place):
        with refused(chat_caller, "overloaded", message):
            chat_caller.chat(one_place.url, user(PROMPT))
        if chat_caller.sees_refused_streams:
            with refused(chat_caller, "overloaded", message):
                chat_caller.stream(one_place.url, user(PROMPT))


def test_hanging_up_in_a_stream_frees_its_place_within_a_second(
    streaming_chat_caller: ChatCaller, one_place: Server
) -> None:
    """G19."""
    dropped = one_place.metric(DROPPED)
    pieces = streaming_chat_caller.stream(one_place.url, user(PROMPT), read=3, max_tokens=15_000)
    wait_until_idle(one_place, within_s=1.0)
    assert len(pieces) == 3
    assert one_place.metric(DROPPED) == dropped + 1  # it was cut short, not finished
    streaming_chat_caller.chat(one_place.url, user(PROMPT), max_tokens=1)
