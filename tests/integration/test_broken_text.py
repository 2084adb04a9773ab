"""Random bytes as answers: ids from random weights rarely make whole characters, and no piece of text may be lost,
doubled or shown too early, whichever route shows it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from tests.router.openai.asking import CHAT, COMPLETIONS, chunks, content, user
from tests.support.asking import client_of, events_of
from tests.support.checkpoints import SPECIAL_TOKENS
from tests.support.servers import Server

NUM_ANSWERS = 200
NUM_CHOICES = 10  # of one request of the OpenAI routes; choice i has the request's seed + i
MAX_TOKENS = 24
CONVERSATION = user("x")
# The conversation as the template of tiny checkpoints writes it, so that all routes give the same answers.
PROMPT = "<s>[user] x\n[assistant] "
SEEDS = range(NUM_ANSWERS)
FIRST_SEEDS = range(0, NUM_ANSWERS, NUM_CHOICES)

Json = dict[str, Any]


@pytest.fixture(scope="module")
def client(short_answers: Server) -> Any:
    with client_of(short_answers) as client:
        yield client


def native_body(seed: int) -> Json:
    parameters = {"do_sample": True, "seed": seed, "max_new_tokens": MAX_TOKENS, "details": True}
    return {"inputs": PROMPT, "parameters": parameters}


def post(client: httpx.Client, path: str, body: Json) -> httpx.Response:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.fixture(scope="module")
def answers(client: httpx.Client) -> list[Json]:
    """Of /generate, by seed."""
    with ThreadPoolExecutor(8) as threads:
        found: list[Json] = list(threads.map(lambda seed: post(client, "/generate", native_body(seed)).json(), SEEDS))
    return found


def texts(answers: list[Json]) -> list[str]:
    return [answer["generated_text"] for answer in answers]


def joined(tokens: list[Json]) -> str:
    """The text of tokens, without the names of special ones."""
    return "".join(
        token["text"].removesuffix(SPECIAL_TOKENS[token["id"]]) if token["special"] else token["text"]
        for token in tokens
    )


def test_answers_are_full_of_broken_characters(answers: list[Json]) -> None:
    assert sum("\ufffd" in text for text in texts(answers)) > NUM_ANSWERS * 0.8
    reasons = [answer["details"]["finish_reason"] for answer in answers]
    # Characters that are not finished at the end of an answer, by length and before an end token.
    ends = {reason for reason, text in zip(reasons, texts(answers), strict=True) if text.endswith("\ufffd")}
    assert ends == {"length", "eos_token"}
    assert any(token["special"] for answer in answers for token in answer["details"]["tokens"][:-1])


def test_tokens_join_to_the_generated_text_and_that_is_what_the_tokenizer_reads(
    answers: list[Json], tokenizer: Tokenizer
) -> None:
    for answer in answers:
        tokens = answer["details"]["tokens"]
        assert joined(tokens) == answer["generated_text"]
        assert tokenizer.decode([token["id"] for token in tokens]) == answer["generated_text"]


def test_a_stream_has_the_same_tokens_and_text(client: httpx.Client, answers: list[Json]) -> None:
    def ask(seed: int) -> list[Json]:
        with client.stream("POST", "/generate_stream", json=native_body(seed)) as response:
            return list(events_of(response))

    with ThreadPoolExecutor(8) as threads:
        for answer, events in zip(answers, threads.map(ask, SEEDS), strict=True):
            assert [event["token"] for event in events] == answer["details"]["tokens"]
            assert events[-1]["generated_text"] == answer["generated_text"]


def test_completions_are_the_same_text_whole_and_in_pieces(client: httpx.Client, answers: list[Json]) -> None:
    whole: list[str] = []
    pieces: list[str] = []
    for seed in FIRST_SEEDS:
        body = {"prompt": PROMPT, "seed": seed, "max_tokens": MAX_TOKENS, "n": NUM_CHOICES}
        choices = post(client, COMPLETIONS, body).json()["choices"]
        whole += [choice["text"] for choice in choices]
        events = chunks(post(client, COMPLETIONS, {**body, "stream": True}).content)
        pieces += [
            "".join(choice["text"] for event in events for choice in event["choices"] if choice["index"] == index)
            for index in range(NUM_CHOICES)
        ]
    assert whole == texts(answers)
    assert pieces == whole


def test_chat_is_the_same_text_whole_and_in_pieces(client: httpx.Client, answers: list[Json]) -> None:
    whole: list[str] = []
    pieces: list[str] = []
    for seed in FIRST_SEEDS:
        body = {"messages": CONVERSATION, "seed": seed, "max_tokens": MAX_TOKENS, "n": NUM_CHOICES}
        choices = post(client, CHAT, body).json()["choices"]
        whole += [choice["message"]["content"] for choice in choices]
        events = chunks(post(client, CHAT, {**body, "stream": True}).content)
        pieces += [content(events, index) for index in range(NUM_CHOICES)]
    assert whole == texts(answers)
    assert pieces == whole
