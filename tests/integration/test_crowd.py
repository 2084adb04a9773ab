"""Answers do not depend on the company they are made in, over HTTP and on one and two shards."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer

from tests.support.asking import Answer, Question, ask, ask_at_once, client_of, prompt_of
from tests.support.servers import Server
from tests.support.witness import TIE, Witness

_SEED = 42
_SAMPLED = {"do_sample": True, "temperature": 1.0, "seed": _SEED, "max_new_tokens": 30}


def greedy_questions() -> list[Question]:
    """30, with prompts of 1 to 300 tokens and answers of 1 to 60, spread over three seconds."""
    chance = random.Random(32)
    lengths = [1, 300, *(chance.randint(2, 299) for _ in range(28))]
    answers = [60, 1, *(chance.randint(1, 60) for _ in range(28))]
    return [
        Question(prompt_of(length, seed=index), {"max_new_tokens": answer}, delay_s=chance.uniform(0, 3))
        for index, (length, answer) in enumerate(zip(lengths, answers, strict=True))
    ]


@pytest.fixture(scope="module")
def alone(one_shard: Server) -> list[Answer]:
    with client_of(one_shard) as client:
        return [ask(client, question.inputs, **question.parameters) for question in greedy_questions()]


def test_alone_is_what_transformers_says(alone: list[Answer], witness: Witness, tokenizer: Tokenizer) -> None:
    for question, answer in zip(greedy_questions(), alone, strict=True):
        prompt_ids = tokenizer.encode(question.inputs).ids
        assert len(prompt_ids) == len(question.inputs)
        witness.assert_greedy(prompt_ids, answer.ids)


@pytest.mark.parametrize("name", ["one_shard", "two_shards"])
def test_30_greedy_requests_at_random_times_have_the_ids_they_get_alone(
    request: pytest.FixtureRequest, alone: list[Answer], name: str
) -> None:
    """G32."""
    server: Server = request.getfixturevalue(name)
    for answer, expected in zip(ask_at_once(server, greedy_questions()), alone, strict=True):
        assert answer.ids == expected.ids
        assert (answer.text, answer.finish_reason) == (expected.text, expected.finish_reason)
        assert answer.logprobs == pytest.approx(expected.logprobs, abs=TIE)


@pytest.mark.parametrize("name", ["one_shard", "two_shards"])
def test_a_seed_means_the_same_alone_and_among_15_that_join_and_leave(
    request: pytest.FixtureRequest, one_shard: Server, name: str
) -> None:
    """G16: the same ids and the seed in the details, on one shard and on two."""
    prompt = prompt_of(37)
    with client_of(one_shard) as client:
        alone = ask(client, prompt, **_SAMPLED)
    neighbours = [
        Question(
            prompt_of(5 + 11 * index, seed=16),
            {"max_new_tokens": 3 + 4 * index, "do_sample": index % 2 == 0, "temperature": 0.7, "top_k": 5 + index},
            delay_s=index * 0.03,
        )
        for index in range(15)
    ]
    subjects = [Question(prompt, _SAMPLED, delay_s=0.1), Question(prompt, _SAMPLED, delay_s=0.3)]
    answers = ask_at_once(request.getfixturevalue(name), [*subjects, *neighbours])
    for answer in answers[:2]:
        assert answer.ids == alone.ids
        assert answer.seed == _SEED
        assert answer.logprobs == pytest.approx(alone.logprobs, abs=TIE)


def test_the_largest_seed_is_taken_and_without_one_two_answers_differ(one_shard: Server) -> None:
    """G16."""
    largest = 2**64 - 1
    with client_of(one_shard) as client:
        answers = [ask(client, "a seed", **{**_SAMPLED, "seed": largest}) for _ in range(2)]
        assert [answer.seed for answer in answers] == [largest, largest]
        assert answers[0].ids == answers[1].ids
        unseeded = [ask(client, "a seed", do_sample=True, max_new_tokens=30) for _ in range(2)]
    assert unseeded[0].seed != unseeded[1].seed
    assert unseeded[0].ids != unseeded[1].ids
