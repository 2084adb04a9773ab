"""What openai does beside chats: completions, models, and routes that are not there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from tests.clients.clients import ClientError, ClientProcess, Way, named
from tests.clients.expected import ENDING_PROMPT, MULTI_BYTE_PROMPT, PROMPT, Expected, user
from tests.support.servers import Server

TOLERANCE = 1e-3


@dataclass(frozen=True)
class Completions:
    """openai's completions, used in one way. Greedy."""

    process: ClientProcess
    way: Way
    url: str

    def create(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._call("complete", prompt, fields)
        return answer

    def stream(self, prompt: Any, **fields: Any) -> list[dict[str, Any]]:
        chunks: list[dict[str, Any]] = self._call("complete_stream", prompt, fields)
        return chunks

    def _call(self, operation: str, prompt: Any, fields: dict[str, Any]) -> Any:
        arguments = {"temperature": 0, "max_tokens": 20, **fields}
        return self.process.call(named(operation, self.way), url=self.url, prompt=prompt, **arguments)


@pytest.fixture
def openai(processes: dict[str, ClientProcess]) -> ClientProcess:
    return processes["openai"]


@pytest.fixture
def completions(openai: ClientProcess, way: Way, server: Server) -> Completions:
    return Completions(openai, way, server.url)


def texts(answer: dict[str, Any]) -> list[str]:
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [choice["text"] for choice in answer["choices"]]


@pytest.mark.parametrize("prompt", [PROMPT, MULTI_BYTE_PROMPT])
def test_a_prompt_is_completed(completions: Completions, expected: Expected, prompt: str) -> None:
    """G07."""
    answer = completions.create(prompt)
    assert texts(answer) == [expected.greedy_text(prompt, 20)]
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == len(expected.prompt_ids(prompt))
    assert answer["usage"]["completion_tokens"] == 20
    chunks = completions.stream(prompt)
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == texts(answer)[0]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_token_ids_are_completed_like_their_text(completions: Completions, expected: Expected) -> None:
    ids = [expected.prompt_ids(prompt) for prompt in (PROMPT, MULTI_BYTE_PROMPT)]
    both = [expected.greedy_text(prompt, 20) for prompt in (PROMPT, MULTI_BYTE_PROMPT)]
    assert texts(completions.create(ids[0])) == both[:1]
    assert texts(completions.create(ids)) == both


def test_several_prompts_are_answered_in_their_order(completions: Completions, expected: Expected) -> None:
    prompts = [PROMPT, MULTI_BYTE_PROMPT, ENDING_PROMPT, "one"]
    all_texts = [expected.greedy_text(prompt, 20) for prompt in prompts]
    assert texts(completions.create(prompts)) == all_texts
    streamed = [""] * len(prompts)
    for chunk in completions.stream(prompts):
        for choice in chunk["choices"]:
            streamed[choice["index"]] += choice["text"]
    assert streamed == all_texts


def test_the_prompt_is_echoed(completions: Completions, expected: Expected) -> None:
    whole = MULTI_BYTE_PROMPT + expected.greedy_text(MULTI_BYTE_PROMPT, 20)
    assert texts(completions.create(MULTI_BYTE_PROMPT, echo=True)) == [whole]
    chunks = completions.stream(MULTI_BYTE_PROMPT, echo=True)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole


def test_log_probabilities(completions: Completions, expected: Expected) -> None:
    found = completions.create(PROMPT, max_tokens=10, logprobs=2)["choices"][0]["logprobs"]
    ids = expected.greedy_ids(PROMPT, 10)
    rows = expected.witness.logprobs(expected.prompt_ids(PROMPT), ids)
    assert found["token_logprobs"] == pytest.approx(
        [float(row[i]) for row, i in zip(rows, ids, strict=True)], abs=TOLERANCE
    )
    assert len(found["tokens"]) == len(found["top_logprobs"]) == 10


def test_a_stream_with_usage(completions: Completions, expected: Expected) -> None:
    *chunks, last = completions.stream(PROMPT, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (
        len(expected.prompt_ids(PROMPT)),
        20,
    )
    assert all(chunk["usage"] is None for chunk in chunks)


@pytest.mark.parametrize(
    ("prompt", "fields", "message"),
    [
        pytest.param(["a"] * 5, {}, "Number of prompts exceeds the maximum allowed batch size of 4", id="prompts"),
        pytest.param(PROMPT, {"suffix": "x"}, "Suffix is not supported", id="suffix"),
        pytest.param(PROMPT, {"logit_bias": {"-1": 1}}, "`logit_bias` keys must be token ids", id="logit_bias"),
        pytest.param(PROMPT, {"max_tokens": 10_000}, "`inputs` tokens + `max_new_tokens` must be", id="max_tokens"),
    ],
)
def test_what_the_server_refuses_is_an_unprocessable_entity(
    completions: Completions, prompt: Any, fields: dict[str, Any], message: str
) -> None:
    for ask in (completions.create, completions.stream):
        with pytest.raises(ClientError, match=re.escape(message)) as caught:
            ask(prompt, **fields)
        assert caught.value.kind == "openai.UnprocessableEntityError"


def test_the_newer_name_of_max_tokens(openai: ClientProcess, way: Way, server: Server, expected: Expected) -> None:
    """G05."""
    call = {"messages": user(PROMPT), "temperature": 0, "max_completion_tokens": 7}
    assert openai.call(named("chat", way), url=server.url, **call)["text"] == expected.chat_text(user(PROMPT), 7)


def test_the_model_is_listed(openai: ClientProcess, server: Server) -> None:
    (model,) = openai.call("models", url=server.url)
    assert model["object"] == "model"
    found = openai.call("chat", url=server.url, messages=user(PROMPT), model=model["id"], max_tokens=1)
    assert found["answer"]["object"] == "chat.completion"


def test_embeddings_are_not_found(openai: ClientProcess, server: Server) -> None:
    with pytest.raises(ClientError, match="Not Found: POST /v1/embeddings") as caught:
        openai.call("embed", url=server.url, text="x")
    assert caught.value.kind == "openai.NotFoundError"
