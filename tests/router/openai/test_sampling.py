"""OpenAI's sampling fields, as they reach the shard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.router.api.scripted import new_tokenizer
from tests.router.openai.asking import CHAT, COMPLETIONS, user
from tests.router.openai.scripted import RecordingShard, new_shard, new_templates
from tests.support.router_server import router_server
from text_generation_proto import generate_pb2 as pb


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> RecordingShard:
    return new_shard(tmp_path_factory.mktemp("shard"))


@pytest.fixture(scope="module")
def client(shard: RecordingShard) -> Iterator[httpx.Client]:
    with router_server(shard, new_tokenizer(), new_templates()) as server, server.client() as client:
        yield client


@pytest.fixture(scope="module")
def strict_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RecordingShard, httpx.Client]]:
    shard = new_shard(tmp_path_factory.mktemp("shard"))
    with router_server(shard, new_tokenizer(), new_templates(), compat="v3") as server, server.client() as client:
        yield shard, client


def sampled(
    shard: RecordingShard, client: httpx.Client, path: str = CHAT, **fields: Any
) -> list[pb.SamplingParameters]:
    """What reaches the shard for each sequence of a request."""
    return [admission.sampling for admission in admitted(shard, client, path, **fields)]


def admitted(shard: RecordingShard, client: httpx.Client, path: str, **fields: Any) -> list[pb.Admission]:
    shard.admissions.clear()
    prompt: dict[str, Any] = {"messages": user("capital")} if path == CHAT else {"prompt": "capital"}
    answer = client.post(path, json={**prompt, "max_tokens": 1, **fields})
    assert answer.status_code == 200, answer.text
    return list(shard.admissions)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_without_fields_the_text_is_sampled(shard: RecordingShard, client: httpx.Client, path: str) -> None:
    (first,) = sampled(shard, client, path)
    assert (first.do_sample, first.temperature, first.top_p, first.top_k) == (True, 1.0, 1.0, 0)
    assert first.repetition_penalty == 1.0
    (second,) = sampled(shard, client, path)
    assert first.seed != second.seed


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_temperature_0_is_greedy_whatever_else_is_given(shard: RecordingShard, client: httpx.Client, path: str) -> None:
    """G04."""
    (sampling,) = sampled(shard, client, path, temperature=0, top_p=0.5, top_k=3, seed=1)
    assert not sampling.do_sample
    (sampling,) = sampled(shard, client, path, temperature=0.5, top_p=0.5, top_k=3, seed=1)
    assert (sampling.do_sample, sampling.temperature, sampling.top_p, sampling.top_k) == (True, 0.5, 0.5, 3)
    assert sampling.seed == 1


def test_neutral_values_change_nothing(shard: RecordingShard, client: httpx.Client) -> None:
    """G04."""
    neutral: dict[str, Any] = {"top_p": 1.0, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}}
    assert sampled(shard, client, seed=1, **neutral) == sampled(shard, client, seed=1)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_penalties_and_bias_mean_what_openai_means(shard: RecordingShard, client: httpx.Client, path: str) -> None:
    """G10."""
    fields: dict[str, Any] = {"frequency_penalty": 1.5, "presence_penalty": -0.5, "logit_bias": {"10": -100, "3": 1.5}}
    (sampling,) = sampled(shard, client, path, temperature=0, **fields)
    assert (sampling.frequency_penalty, sampling.count_penalty, sampling.presence_penalty) == (0.0, 1.5, -0.5)
    assert dict(zip(sampling.bias_token_ids, sampling.bias_values, strict=True)) == {10: -100.0, 3: 1.5}
    (sampling,) = sampled(shard, client, path, temperature=0, repetition_penalty=1.5)
    assert sampling.repetition_penalty == 1.5


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_the_prompt_are_worked_out_only_if_asked_for(
    shard: RecordingShard, client: httpx.Client, stream: bool
) -> None:
    """G13: a chat never asks for them."""
    for fields in ({}, {"logprobs": True, "top_logprobs": 2}):
        (admission,) = admitted(shard, client, CHAT, stream=stream, **fields)
        assert not admission.prompt_logprobs
    (admission,) = admitted(shard, client, COMPLETIONS, stream=stream, logprobs=2)
    assert not admission.prompt_logprobs
    (admission,) = admitted(shard, client, COMPLETIONS, logprobs=0, echo=True)
    assert admission.prompt_logprobs


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_choices_have_seeds_of_their_own(shard: RecordingShard, client: httpx.Client, path: str) -> None:
    seeds = [sampling.seed for sampling in sampled(shard, client, path, n=3, seed=2**64 - 2)]
    assert seeds == [2**64 - 2, 2**64 - 1, 0]
    assert len({sampling.seed for sampling in sampled(shard, client, path, n=3)}) == 3


def test_compat_v3_means_what_tgi_3_meant(strict_client: tuple[RecordingShard, httpx.Client]) -> None:
    shard, client = strict_client
    (sampling,) = sampled(shard, client, frequency_penalty=0.5, presence_penalty=0)
    assert sampling.frequency_penalty == 0.5
    assert sampling.repetition_penalty == 2.0
    assert (sampling.count_penalty, sampling.presence_penalty) == (0.0, 0.0)
    refused: list[dict[str, Any]] = [{"stop": "x"}, {"top_p": 1}, {"logit_bias": {"1": 1}}, {"presence_penalty": -2}]
    for fields in refused:
        answer = client.post(CHAT, json={"messages": user("capital"), **fields})
        assert (answer.status_code, answer.json()["error_type"]) == (422, "validation")


def test_compat_v3_answers_errors_in_streams(strict_client: tuple[RecordingShard, httpx.Client]) -> None:
    _, client = strict_client
    body = {"messages": user("capital"), "stream": True}
    answer = client.post(CHAT, json={**body, "max_tokens": 0})
    assert answer.status_code == 200
    event, done, rest = answer.content.split(b"\n\n")
    assert b'"message":"Input validation error: `max_new_tokens` must be strictly positive"' in event
    assert (done, rest) == (b"data: [DONE]", b"")
    # What is wrong with the conversation itself was a status there too.
    assert client.post(CHAT, json={**body, "tool_choice": "f"}).status_code == 422
