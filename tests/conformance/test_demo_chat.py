"""The demo model through OpenAI's routes: it is asked what transformers would ask it, and fields have an effect."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import jsonschema
import pytest
from transformers import PreTrainedTokenizerBase

from tests.support.asking import client_of
from tests.support.servers import Server

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def post(server: Server, path: str, **fields: Any) -> dict[str, Any]:
    with client_of(server) as client:
        answer = client.post(path, json={"temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def chat(server: Server, messages: list[dict[str, Any]] = QUESTION, **fields: Any) -> dict[str, Any]:
    return post(server, "/v1/chat/completions", messages=messages, **fields)


def said(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def tokens_of(server: Server, **fields: Any) -> list[str]:
    """What the model says after a text that invites to go on and on."""
    answer = post(server, "/v1/completions", prompt="One two one two one two", max_tokens=24, logprobs=0, **fields)
    tokens: list[str] = answer["choices"][0]["logprobs"]["tokens"]
    return tokens


def test_the_capital_of_france_through_chat(demo_server: Server, demo_tokenizer: PreTrainedTokenizerBase) -> None:
    answer = chat(demo_server, max_tokens=20)
    assert said(answer) == PARIS
    assert answer["choices"][0]["finish_reason"] == "stop"
    prompt = demo_tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    assert answer["usage"]["prompt_tokens"] == len(demo_tokenizer(prompt, add_special_tokens=False)["input_ids"])
    assert said(chat(demo_server, stop="Par")) == "The capital of France is "


def test_the_last_answer_is_continued(demo_server: Server) -> None:
    begun = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
    assert said(chat(demo_server, begun, max_tokens=20)) == " Paris."


def test_token_ids_are_the_same_prompt_as_their_text(
    demo_server: Server, demo_tokenizer: PreTrainedTokenizerBase
) -> None:
    text = "The capital of France is"
    ids = demo_tokenizer(text)["input_ids"]
    answer = post(demo_server, "/v1/completions", prompt=[text, "Once upon a time"], max_tokens=6)
    by_ids = post(demo_server, "/v1/completions", prompt=ids, max_tokens=6, echo=True)
    assert answer["choices"][0]["text"].startswith(" Paris")
    assert by_ids["choices"][0]["text"] == text + answer["choices"][0]["text"]


def test_bias_and_penalties_change_the_answer(demo_server: Server, demo_tokenizer: PreTrainedTokenizerBase) -> None:
    """G10."""
    (paris,) = demo_tokenizer(" Paris")["input_ids"]
    assert "Paris" not in said(chat(demo_server, max_tokens=12, logit_bias={str(paris): -100}))
    forced = chat(demo_server, max_tokens=3, logit_bias={str(paris): 100})
    assert said(forced) == " Paris Paris Paris"
    plain, frequency, presence = (
        tokens_of(demo_server, **penalty) for penalty in ({}, {"frequency_penalty": 2.0}, {"presence_penalty": 2.0})
    )
    assert max(Counter(frequency).values()) < max(Counter(plain).values())
    assert presence not in (plain, frequency)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_tool_call_has_arguments_that_fit(demo_server: Server, choice: Any) -> None:
    """G08."""
    question = [{"role": "user", "content": "What is the weather in Oslo?"}]
    answer = chat(demo_server, question, tools=[WEATHER], tool_choice=choice, max_tokens=100)
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    jsonschema.validate(arguments, WEATHER["function"]["parameters"])
    assert "Oslo" in arguments["city"]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


def test_a_response_format_holds(demo_server: Server) -> None:
    """G09."""
    schema = {
        "type": "object",
        "properties": {"capital": {"enum": ["Oslo", "Paris", "Rome"]}},
        "required": ["capital"],
        "additionalProperties": False,
    }
    response_format = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    answer = chat(demo_server, response_format=response_format, max_tokens=40)
    assert json.loads(said(answer)) == {"capital": "Paris"}
