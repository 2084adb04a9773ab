"""What clients that ask for details show beside the text: tokens, prompt and several answers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.clients.clients import DETAILED_CLIENTS, Caller, ClientError
from tests.clients.expected import ENDING_PROMPT, NUM_TOKENS, PROMPT, Expected
from tests.support.checkpoints import SPECIAL_TOKENS
from tests.support.servers import Server

pytestmark = pytest.mark.parametrize("client_name", DETAILED_CLIENTS)

TOLERANCE = 1e-3
SAMPLING = {"do_sample": True, "temperature": 0.9, "max_new_tokens": 15}


def assert_tokens(tokens: list[dict[str, Any]], ids: list[int], logprobs: torch.Tensor) -> None:
    assert [token["id"] for token in tokens] == ids
    for token, row in zip(tokens, logprobs, strict=True):
        assert token["logprob"] == pytest.approx(float(row[token["id"]]), abs=TOLERANCE)
        assert token["special"] == (token["id"] < len(SPECIAL_TOKENS))


def test_tokens_and_their_log_probabilities(caller: Caller, server: Server, expected: Expected) -> None:
    details = caller.details(server.url, PROMPT, max_new_tokens=20)
    ids = expected.greedy_ids(PROMPT, 20)
    assert_tokens(details["tokens"], ids, expected.witness.logprobs(expected.prompt_ids(PROMPT), ids))
    assert "".join(token["text"] for token in details["tokens"]) == expected.text(ids)
    assert details["finish_reason"] == "length"
    assert details["generated_tokens"] == 20
    assert details["seed"] is None
    assert details["prefill"] == []
    assert details["best_of_sequences"] is None


def test_streamed_tokens_and_the_details_of_the_last(caller: Caller, server: Server, expected: Expected) -> None:
    events = caller.events(server.url, ENDING_PROMPT, max_new_tokens=NUM_TOKENS)
    ids = expected.greedy_ids(ENDING_PROMPT)
    logprobs = expected.witness.logprobs(expected.prompt_ids(ENDING_PROMPT), ids)
    assert_tokens([event["token"] for event in events], ids, logprobs)
    assert all(event["generated_text"] is None and event["details"] is None for event in events[:-1])
    assert events[-1]["generated_text"] == expected.greedy_text(ENDING_PROMPT)
    details = events[-1]["details"]
    assert (details["finish_reason"], details["generated_tokens"], details["seed"]) == ("eos_token", len(ids), None)


def test_the_likeliest_tokens_of_each_step(caller: Caller, server: Server, expected: Expected) -> None:
    ids = expected.greedy_ids(PROMPT, 10)
    likeliest = expected.witness.logprobs(expected.prompt_ids(PROMPT), ids).topk(3)
    whole = caller.details(server.url, PROMPT, max_new_tokens=10, top_n_tokens=3)["top_tokens"]
    streamed = [event["top_tokens"] for event in caller.events(server.url, PROMPT, max_new_tokens=10, top_n_tokens=3)]
    assert whole == streamed
    assert [[token["id"] for token in step] for step in whole] == likeliest.indices.tolist()
    for step, logprobs in zip(whole, likeliest.values.tolist(), strict=True):
        assert [token["logprob"] for token in step] == pytest.approx(logprobs, abs=TOLERANCE)


def test_the_prompt_with_its_log_probabilities(caller: Caller, server: Server, expected: Expected) -> None:
    details = caller.details(server.url, PROMPT, max_new_tokens=5, decoder_input_details=True)
    first, *rest = expected.prompt_ids(PROMPT)
    assert (details["prefill"][0]["id"], details["prefill"][0]["logprob"]) == (first, None)
    logprobs = expected.witness.logprobs([first], rest)
    assert [token["id"] for token in details["prefill"][1:]] == rest
    for token, row in zip(details["prefill"][1:], logprobs, strict=True):
        assert token["logprob"] == pytest.approx(float(row[token["id"]]), abs=TOLERANCE)


def test_a_prompt_is_truncated_from_the_left(caller: Caller, server: Server, expected: Expected) -> None:
    details = caller.details(server.url, PROMPT, max_new_tokens=5, decoder_input_details=True, truncate=4)
    assert [token["id"] for token in details["prefill"]] == expected.prompt_ids(PROMPT)[-4:]


def test_the_best_of_two_is_the_likelier_one(caller: Caller, server: Server) -> None:
    best = caller.details(server.url, PROMPT, best_of=2, **SAMPLING)
    (other,) = best["best_of_sequences"]
    assert best["seed"] != other["seed"]
    assert mean_logprob(best["tokens"]) >= mean_logprob(other["tokens"])
    for sequence in (best, other):
        alone = caller.details(server.url, PROMPT, seed=sequence["seed"], **SAMPLING)
        assert [token["id"] for token in alone["tokens"]] == [token["id"] for token in sequence["tokens"]]
    assert other["finish_reason"] == "length"
    assert other["generated_tokens"] == 15


def mean_logprob(tokens: list[dict[str, Any]]) -> float:
    return math.fsum(token["logprob"] for token in tokens) / len(tokens)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"best_of": 3, "do_sample": True}, "`best_of` must be > 0 and <= 2. Given: 3"),
        ({"frequency_penalty": 2.5}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
        ({"top_n_tokens": 6}, "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
    ],
)
def test_bad_parameters_that_only_the_server_knows(
    caller: Caller, server: Server, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ClientError) as caught:
        caller.generate(server.url, PROMPT, **parameters)
    assert caught.value.kind == caller.error("validation")
    assert caught.value.message == f"Input validation error: {message}"


def test_a_stream_with_a_bad_parameter(caller: Caller, server: Server) -> None:
    with pytest.raises(ClientError, match="`frequency_penalty` must be") as caught:
        caller.events(server.url, PROMPT, frequency_penalty=2.5)
    assert caught.value.kind == caller.error("validation")
