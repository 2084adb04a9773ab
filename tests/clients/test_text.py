"""What every client of the native routes is for: text, whole or piece by piece, and errors of its own classes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.asserting import DROPPED, occupied, refused, wait_until_idle
from tests.clients.clients import Caller
from tests.clients.expected import (
    ENDING_PROMPT,
    MAX_INPUT_TOKENS,
    MAX_TOTAL_TOKENS,
    MULTI_BYTE_PROMPT,
    NUM_TOKENS,
    PROMPT,
    Expected,
)
from tests.support.asking import ask, client_of, prompt_of
from tests.support.servers import Server

PROMPTS = (PROMPT, MULTI_BYTE_PROMPT, ENDING_PROMPT)
SAMPLING = {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9, "typical_p": 0.9, "max_new_tokens": 40}


def test_prompts_are_what_their_names_say(expected: Expected) -> None:
    text = expected.greedy_text(PROMPT)
    assert all(character in text for character in ("😀", "中文", "한국어", "\u2028", "\ufffd"))
    assert len(expected.greedy_ids(ENDING_PROMPT)) < NUM_TOKENS == len(expected.greedy_ids(PROMPT))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_that_of_transformers(caller: Caller, server: Server, expected: Expected, prompt: str) -> None:
    """G43."""
    assert caller.generate(server.url, prompt, max_new_tokens=NUM_TOKENS) == expected.greedy_text(prompt)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_streamed_pieces_are_the_whole_text(caller: Caller, server: Server, expected: Expected, prompt: str) -> None:
    """G17 and G43: emoji, Chinese, Korean and cut-off characters among them."""
    assert caller.streamed_text(server.url, prompt, max_new_tokens=NUM_TOKENS) == expected.greedy_text(prompt)


def test_a_text_comes_in_pieces(caller: Caller, server: Server, expected: Expected) -> None:
    pieces = caller.stream(server.url, ENDING_PROMPT, max_new_tokens=NUM_TOKENS)
    assert len(pieces) > len(expected.greedy_ids(ENDING_PROMPT)) / 2
    assert (pieces[-1] == "</s>") == caller.client.shows_special


def test_full_text_begins_with_the_prompt_as_it_was_sent(caller: Caller, server: Server, expected: Expected) -> None:
    text = caller.generate(server.url, MULTI_BYTE_PROMPT, max_new_tokens=20, return_full_text=True)
    assert text == MULTI_BYTE_PROMPT + expected.greedy_text(MULTI_BYTE_PROMPT, 20)


@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(["Fr"], id="one token"),
        pytest.param(["never", "LZ", "nor this", "nor that"], id="over two tokens"),
        pytest.param(["never", "nor this", "nor that", "中"], id="the middle of a token"),
        pytest.param(["\u2028", "Fr", "LZ", "中"], id="the first of four"),
    ],
)
def test_a_stop_string_ends_the_text(caller: Caller, server: Server, expected: Expected, stop: list[str]) -> None:
    """G01."""
    text = expected.greedy_text(PROMPT)
    start, found = min((text.index(string), string) for string in stop if string in text)
    end = start + len(found) if caller.client.shows_stop else start
    assert caller.generate(server.url, PROMPT, stop=stop, max_new_tokens=NUM_TOKENS) == text[:end]


def test_a_stop_string_ends_a_stream(caller: Caller, server: Server, expected: Expected) -> None:
    text = expected.greedy_text(PROMPT)
    end = text.index("Fr") + (2 if caller.client.shows_stop else 0)
    stop = ["no", "nor", "Fr", "neither"]
    assert caller.streamed_text(server.url, PROMPT, stop=stop, max_new_tokens=NUM_TOKENS) == text[:end]


def test_a_seed_gives_the_text_again_and_the_same_as_without_a_client(caller: Caller, server: Server) -> None:
    text = caller.generate(server.url, PROMPT, seed=7, **SAMPLING)
    assert caller.generate(server.url, PROMPT, seed=7, **SAMPLING) == text
    assert caller.streamed_text(server.url, PROMPT, seed=7, **SAMPLING) == text
    assert caller.generate(server.url, PROMPT, seed=8, **SAMPLING) != text
    with client_of(server) as client:
        assert ask(client, PROMPT, seed=7, **SAMPLING).text == text


@pytest.mark.parametrize(
    ("length", "parameters", "message"),
    [
        pytest.param(
            MAX_INPUT_TOKENS + 1,
            {"max_new_tokens": 5},
            f"`inputs` must have less than {MAX_INPUT_TOKENS} tokens. Given: {MAX_INPUT_TOKENS + 1}",
            id="prompt too long",
        ),
        pytest.param(
            20,
            {"max_new_tokens": 10_000},
            f"`inputs` tokens + `max_new_tokens` must be <= {MAX_TOTAL_TOKENS}. Given: 20 `inputs` tokens and 1024",
            id="answer too long",
        ),
        pytest.param(20, {"truncate": 5000}, "`truncate` must be strictly positive and less than", id="truncate"),
        pytest.param(
            20, {"stop": list("abcde")}, "`stop` supports up to 4 stop sequences. Given: 5", id="five stop strings"
        ),
    ],
)
def test_what_the_server_refuses_is_a_validation_error(
    caller: Caller, server: Server, length: int, parameters: dict[str, Any], message: str
) -> None:
    """G03."""
    with refused(caller, "validation", message):
        caller.generate(server.url, prompt_of(length), **parameters)
    with refused(caller, "validation", message):
        caller.stream(server.url, prompt_of(length), **parameters)


def test_an_unknown_route_is_not_found(caller: Caller, server: Server) -> None:
    with refused(caller, "not found", "Not Found: POST /nope"):
        caller.generate(f"{server.url}/nope", PROMPT)
    with refused(caller, "not found", "Not Found: POST /nope"):
        caller.stream(f"{server.url}/nope", PROMPT)


def test_a_url_may_end_in_a_slash(caller: Caller, server: Server, expected: Expected) -> None:
    assert caller.generate(f"{server.url}/", PROMPT, max_new_tokens=5) == expected.greedy_text(PROMPT, 5)


def test_a_full_server_is_an_overload_error(caller: Caller, one_place: Server) -> None:
    """G11."""
    with occupied(one_place):
        with refused(caller, "overloaded", "Model is overloaded"):
            caller.generate(one_place.url, PROMPT)
        with refused(caller, "overloaded", "Model is overloaded"):
            caller.stream(one_place.url, PROMPT)


def test_hanging_up_in_a_stream_frees_its_place_within_a_second(caller: Caller, one_place: Server) -> None:
    """G19."""
    dropped = one_place.metric(DROPPED)
    pieces = caller.stream(one_place.url, PROMPT, read=3, max_new_tokens=15_000)
    wait_until_idle(one_place, within_s=1.0)
    assert len(pieces) == 3
    assert one_place.metric(DROPPED) == dropped + 1  # it was cut short, not finished
    caller.generate(one_place.url, PROMPT, max_new_tokens=1)
