"""Chats of clients that pass every field on and show the whole answer: usage, log-probabilities, schemas and tools."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.clients.clients import CHAT_DETAILED_CLIENTS, ChatCaller
from tests.clients.expected import PROMPT, Expected, Messages, user
from tests.clients.functions import SCHEMAS, TOOLS
from tests.support.servers import Server

pytestmark = pytest.mark.parametrize("chat_client_name", CHAT_DETAILED_CLIENTS)

TOLERANCE = 1e-3
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "b"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["kind", "count"],
    "additionalProperties": False,
}


def only_choice(answer: dict[str, Any]) -> dict[str, Any]:
    (choice,) = answer["choices"]
    found: dict[str, Any] = choice
    return found


def assert_usage(usage: dict[str, Any], prompt_tokens: int, completion_tokens: int) -> None:
    counted = {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert counted == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def test_usage_and_why_it_ended(chat_caller: ChatCaller, server: Server, expected: Expected) -> None:
    """G07."""
    answer = chat_caller.answer(server.url, user(PROMPT), max_tokens=20)
    assert only_choice(answer)["finish_reason"] == "length"
    assert_usage(answer["usage"], len(expected.chat_ids(user(PROMPT))), 20)


def test_a_stream_with_usage(chat_caller: ChatCaller, server: Server, expected: Expected) -> None:
    options = {"include_usage": True}
    *chunks, last = chat_caller.chunks(server.url, user(PROMPT), max_tokens=20, stream_options=options)
    assert last["choices"] == []
    assert_usage(last["usage"], len(expected.chat_ids(user(PROMPT))), 20)
    assert all(chunk["usage"] is None for chunk in chunks)
    text = "".join(only_choice(chunk)["delta"]["content"] for chunk in chunks)
    assert text == expected.chat_text(user(PROMPT), 20)
    assert [only_choice(chunk)["finish_reason"] for chunk in chunks] == [None] * 19 + ["length"]


def test_log_probabilities(chat_caller: ChatCaller, server: Server, expected: Expected) -> None:
    fields = {"max_tokens": 10, "logprobs": True, "top_logprobs": 3}
    content = only_choice(chat_caller.answer(server.url, user(PROMPT), **fields))["logprobs"]["content"]
    prompt_ids = expected.chat_ids(user(PROMPT))
    ids = expected.witness.generate(prompt_ids, 10)
    rows = expected.witness.logprobs(prompt_ids, ids)
    likeliest = rows.topk(3).values.tolist()
    for token, token_id, row, top in zip(content, ids, rows, likeliest, strict=True):
        assert token["logprob"] == pytest.approx(float(row[token_id]), abs=TOLERANCE)
        assert [other["logprob"] for other in token["top_logprobs"]] == pytest.approx(top, abs=TOLERANCE)
    chunks = chat_caller.chunks(server.url, user(PROMPT), **fields)
    streamed = [token for chunk in chunks for token in only_choice(chunk)["logprobs"]["content"]]
    assert [token["token"] for token in streamed] == [token["token"] for token in content]
    assert [token["logprob"] for token in streamed] == pytest.approx(
        [token["logprob"] for token in content], abs=TOLERANCE
    )


def test_choices_are_sampled_with_seeds_in_a_row(chat_caller: ChatCaller, server: Server) -> None:
    """G10."""

    def sample(**fields: Any) -> list[str]:
        answer = chat_caller.answer(server.url, user(PROMPT), temperature=0.9, max_tokens=15, **fields)
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
        return [choice["message"]["content"] for choice in answer["choices"]]

    first, second = sample(seed=7, n=2)
    assert first != second
    assert [first] == sample(seed=7)
    assert [second] == sample(seed=8)


def test_values_that_change_nothing(chat_caller: ChatCaller, server: Server, expected: Expected) -> None:
    """G04."""
    neutral = {"top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}, "n": 1, "seed": 1}
    text = chat_caller.chat(server.url, user(PROMPT), max_tokens=20, stop=[], **neutral)
    assert text == expected.chat_text(user(PROMPT), 20)


def test_a_bias_decides(chat_caller: ChatCaller, server: Server, expected: Expected) -> None:
    """G10."""
    (token_id,) = expected.prompt_ids("Z")
    assert chat_caller.chat(server.url, user(PROMPT), max_tokens=3, logit_bias={str(token_id): 100}) == "ZZZ"


def test_a_stop_string_that_is_not_in_a_list(chat_caller: ChatCaller, server: Server, expected: Expected) -> None:
    text = expected.chat_text(user(PROMPT))
    stop = text[20:23]
    answer = chat_caller.answer(server.url, user(PROMPT), max_tokens=60, stop=stop)
    assert only_choice(answer)["message"]["content"] == text[: text.index(stop)]
    assert only_choice(answer)["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": SCHEMA}},
        {"type": "json_object", "value": SCHEMA},
    ],
    ids=["OpenAI's", "TGI's"],
)
def test_an_answer_follows_a_schema(chat_caller: ChatCaller, server: Server, response_format: dict[str, Any]) -> None:
    """G09."""
    fields = {"max_tokens": 100, "response_format": response_format}
    text = chat_caller.chat(server.url, user(PROMPT), **fields)
    jsonschema.validate(json.loads(text), SCHEMA)
    assert "".join(chat_caller.stream(server.url, user(PROMPT), **fields)) == text


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_t", "add"}),
        ({"type": "function", "function": {"name": "add"}}, {"add"}),
    ],
    ids=["required", "named"],
)
def test_a_forced_call(chat_caller: ChatCaller, server: Server, choice: Any, names: set[str]) -> None:
    """G08."""
    fields = {"max_tokens": 100, "tools": TOOLS, "tool_choice": choice}
    answer = only_choice(chat_caller.answer(server.url, user(PROMPT), **fields))
    (call,) = answer["message"]["tool_calls"]
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    assert name in names
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    assert (answer["finish_reason"], answer["message"]["content"]) == ("tool_calls", None)

    chunks = [only_choice(chunk) for chunk in chat_caller.chunks(server.url, user(PROMPT), **fields)]
    deltas = [delta for chunk in chunks for delta in chunk["delta"]["tool_calls"] or []]
    assert deltas[0]["id"] != call["id"]
    assert deltas[0]["function"]["name"] == name
    assert "".join(delta["function"]["arguments"] for delta in deltas) == arguments
    assert chunks[-1]["finish_reason"] == "tool_calls"


def test_a_call_that_is_forbidden(chat_caller: ChatCaller, server: Server, expected: Expected) -> None:
    answer = chat_caller.answer(server.url, user(PROMPT), max_tokens=20, tools=TOOLS, tool_choice="none")
    message = only_choice(answer)["message"]
    assert (message["content"], message["tool_calls"]) == (expected.chat_text(user(PROMPT), 20), None)


def test_tools_that_the_model_does_not_call(chat_caller: ChatCaller, server: Server, expected: Expected) -> None:
    answer = chat_caller.answer(server.url, user(PROMPT), max_tokens=20, tools=TOOLS, tool_choice="auto")
    choice = only_choice(answer)
    assert (choice["finish_reason"], choice["message"]["tool_calls"]) == ("length", None)
    assert choice["message"]["content"]
    assert answer["usage"]["prompt_tokens"] > len(expected.chat_ids(user(PROMPT))) + 100  # it was told about them


def test_the_result_of_a_call_is_read(chat_caller: ChatCaller, server: Server) -> None:
    """G06."""
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}

    def answer_to(result: str) -> str:
        messages: Messages = [
            *user(PROMPT),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": result},
        ]
        return chat_caller.chat(server.url, messages, max_tokens=10, tools=TOOLS[1:])

    assert answer_to("2") == answer_to("2") != answer_to("3")
