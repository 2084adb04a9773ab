"""Tools and response formats over real HTTP. The scripted shard obeys masks, so grammars really hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from tests.router.api.scripted import new_tokenizer
from tests.router.openai.asking import CHAT, chat, content, post, stream_chat, user
from tests.router.openai.scripted import TOOL_TEMPLATE, new_shard, new_templates
from tests.router.openai.shapes import strictly
from tests.support.functions import function
from tests.support.router_server import router_server
from text_generation_router.openai.schema import ChatCompletion, ChatCompletionChunk

GET_T = function("get_t", city={"type": "string", "maxLength": 5})
ADD = function("add", a={"$ref": "#/$defs/N"}, b={"$ref": "#/$defs/N"})
ADD["function"]["parameters"]["$defs"] = {"N": {"enum": [1, 2]}}
TOOLS = [GET_T, ADD]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}

CALL_TEXT = 'Let me see.<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "ü"}}\n</tool_call></s>'
SHOWN_TOOLS = json.dumps(TOOLS, ensure_ascii=False)


def with_tools(question: str) -> str:
    """As TOOL_TEMPLATE renders it."""
    return f"{SHOWN_TOOLS}[user]{question}[assistant]"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    answers = {
        with_tools("call"): CALL_TEXT,
        with_tools("bare"): '{"name": "get_t", "parameters": {"city": "Oslo"}}</s>',
        with_tools("two"): '[{"name": "add", "arguments": {}}, {"name": "get_t", "arguments": {}}]</s>',
        with_tools("talk"): "Nothing to {call}.</s>",
        "[user]call[assistant]": "No tools.</s>",
        "[user]json[assistant]": 'Sure: {"k": [1]}</s>',
    }
    shard = new_shard(tmp_path_factory.mktemp("shard"), answers)
    templates = new_templates(TOOL_TEMPLATE)
    with router_server(shard, new_tokenizer(), templates) as server, server.client() as client:
        yield client


@pytest.fixture(scope="module")
def plain_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Of a model whose template knows nothing of tools."""
    shard = new_shard(tmp_path_factory.mktemp("shard"))
    with router_server(shard, new_tokenizer(), new_templates()) as server, server.client() as client:
        yield client


def called(answer: dict[str, Any]) -> list[tuple[str, Any]]:
    """Names and arguments of an answer's calls, whose form is checked on the way."""
    strictly(ChatCompletion, answer)
    (choice,) = answer["choices"]
    calls = choice["message"].get("tool_calls", [])
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def streamed_calls(events: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The calls of a stream, put together as clients do."""
    calls: list[dict[str, str]] = []
    for event in events:
        strictly(ChatCompletionChunk, event)
        for delta in event["choices"][0]["delta"].get("tool_calls", []):
            if "id" in delta:
                assert (delta["index"], delta["type"]) == (len(calls), "function")
                calls.append({"id": delta["id"], "name": delta["function"]["name"], "arguments": ""})
            calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
    return calls


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_t", "add"}),
        ("add", {"add"}),
        ({"type": "function", "function": {"name": "get_t"}}, {"get_t"}),
    ],
)
def test_a_forced_call_fits_its_schema(client: httpx.Client, choice: Any, names: set[str]) -> None:
    """G08."""
    for question in ("a", "b", "c"):
        answer = chat(client, question, tools=TOOLS, tool_choice=choice)
        ((name, arguments),) = called(answer)
        assert name in names
        jsonschema.validate(arguments, SCHEMAS[name])
        assert answer["choices"][0]["message"]["content"] is None
        events = stream_chat(client, question, tools=TOOLS, tool_choice=choice)
        (call,) = streamed_calls(events)
        plain = answer["choices"][0]["message"]["tool_calls"][0]
        assert (call["name"], call["arguments"]) == (name, plain["function"]["arguments"])
        assert call["id"] != plain["id"]
        last = events[-1]["choices"][0]
        assert (last["delta"], last["finish_reason"]) == ({}, "tool_calls")
        assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])


def test_arguments_are_streamed_as_they_come(client: httpx.Client) -> None:
    events = stream_chat(client, "a", tools=[GET_T], tool_choice="get_t")
    pieces = [event for event in events if event["choices"][0]["delta"].get("tool_calls")]
    assert len(pieces) > 5


def test_a_forced_call_that_is_cut_off_is_an_error(client: httpx.Client) -> None:
    fields = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 12}
    answer = client.post(CHAT, json={"messages": user("a"), **fields})
    assert (answer.status_code, answer.json()["error_type"]) == (422, "tool_error")
    assert answer.json()["error"].startswith("Tool error: Failed to parse generated text: ")
    assert stream_chat(client, "a", **fields)[-1]["choices"][0]["finish_reason"] == "length"


def test_under_auto_calls_are_found_in_free_text(client: httpx.Client) -> None:
    answer = chat(client, "call", tools=TOOLS)
    assert called(answer) == [("add", {"a": 1, "b": "ü"})]
    assert answer["choices"][0]["message"]["content"] == "Let me see."
    events = stream_chat(client, "call", tools=TOOLS, tool_choice="auto")
    assert content(events) == "Let me see."
    (call,) = streamed_calls(events)
    assert (call["name"], json.loads(call["arguments"])) == ("add", {"a": 1, "b": "ü"})
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert called(chat(client, "bare", tools=TOOLS)) == [("get_t", {"city": "Oslo"})]
    assert called(chat(client, "two", tools=TOOLS)) == [("add", {}), ("get_t", {})]


def test_under_auto_free_text_stays_text(client: httpx.Client) -> None:
    answer = chat(client, "talk", tools=TOOLS)
    assert called(answer) == []
    assert answer["choices"][0]["message"]["content"] == "Nothing to {call}."
    events = stream_chat(client, "talk", tools=TOOLS, logprobs=True)
    assert content(events) == "Nothing to {call}."
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    logprobs = [entry for event in events for entry in event["choices"][0]["logprobs"]["content"]]
    assert len(logprobs) == answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("fields", [{"tools": TOOLS, "tool_choice": "none"}, {"tools": []}, {"tools": None}])
def test_without_tools_the_template_sees_none(client: httpx.Client, fields: dict[str, Any]) -> None:
    """G08."""
    answer = chat(client, "call", **fields)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "No tools."}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": TOOLS, "tool_choice": "f"}, "Tool error: Tool with name f not found"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "Tool error: Tool with name f not found",
        ),
        ({"tool_choice": "get_t"}, "Tool error: Tool with name get_t not found"),
        ({"tool_choice": "required"}, "Tool error: `tool_choice` is `required`, but there are no `tools`"),
        (
            {"tools": TOOLS, "response_format": {"type": "json_object"}},
            "Tool error: Grammar and tools are mutually exclusive",
        ),
        (
            {"tools": [], "response_format": {"type": "regex", "value": "a"}},
            "Tool error: Grammar and tools are mutually exclusive",
        ),
    ],
)
def test_tools_that_cannot_be_used_are_refused(
    client: httpx.Client, streamed: bool, fields: dict[str, Any], message: str
) -> None:
    answer = client.post(CHAT, json={"messages": user("x"), "stream": streamed, **fields})
    assert answer.status_code == 422
    assert answer.json() == {"error": message, "error_type": "tool_error"}


def test_a_schema_nested_too_deeply_is_refused(client: httpx.Client) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(400):
        schema = {"type": "object", "properties": {"a": schema}}
    fields = {"tools": [{"function": {"name": "f", "parameters": schema}}], "tool_choice": "required"}
    answer = client.post(CHAT, json={"messages": user("x"), "max_tokens": 1, **fields})
    assert answer.status_code == 422


# ------------------------------------------------------------------------------------------------ what templates see


def templated(client: httpx.Client, messages: list[dict[str, Any]], **fields: Any) -> str:
    text: str = post(client, "/chat_tokenize", {"messages": messages, **fields})["templated_text"]
    return text


AGENT: list[dict[str, Any]] = [
    {"role": "user", "content": "weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "0", "type": "function", "function": {"name": "w", "arguments": '{"c":"Öslo"}'}}],
    },
    {"role": "tool", "tool_call_id": "0", "content": "6"},
]


@pytest.mark.parametrize("with_content", [True, False])
def test_calls_and_results_of_earlier_turns_reach_the_template(
    client: httpx.Client, plain_client: httpx.Client, with_content: bool
) -> None:
    """G06."""
    messages = [dict(message) for message in AGENT]
    if not with_content:
        del messages[1]["content"]
    assert templated(client, messages) == ('[user]weather?[assistant]<call>w {"c": "Öslo"}[tool]6[assistant]')
    # A template that does not print calls gets them as text.
    assert '[assistant]{"name":"w","arguments":{"c":"Öslo"}}[tool]6' in templated(plain_client, messages)


def test_a_template_that_shows_tools_gets_them_in_openais_form(client: httpx.Client) -> None:
    assert templated(client, user("call"), tools=TOOLS) == with_tools("call")
    assert templated(client, user("x"), tools=TOOLS, tool_choice="add").startswith(
        json.dumps([ADD], ensure_ascii=False)
    )
    own = {"function": {"name": "f", "arguments": {"type": "object"}}}
    expected = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    assert templated(client, user("x"), tools=[own]).startswith(json.dumps([expected]))
    assert '"parameters": {"type": "object", "properties": {}}' in templated(
        client, user("x"), tools=[{"type": "function", "function": {"name": "f"}}]
    )
    assert templated(client, user("x"), tools=TOOLS, tool_prompt="Use them.").endswith(
        "[user]x\n---\nUse them.[assistant]"
    )


def test_a_template_that_does_not_show_tools_has_them_after_the_last_message(plain_client: httpx.Client) -> None:
    shown = json.dumps([GET_T], ensure_ascii=False, separators=(",", ":"))
    text = templated(plain_client, user("x"), tools=[GET_T])
    assert f"[user]x\n---\n{shown}\n" in text
    assert '{"name": ' in text.split(shown)[1]
    text = templated(plain_client, user("x"), tools=[GET_T], tool_prompt="Use them.")
    assert text.endswith(f"[user]x\n---\n{shown}\nUse them.[assistant]")


def test_a_template_that_refuses_is_an_error_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """G06 and G23."""
    source = (
        "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('only users, not ' + m.role) }}{% endif %}"
        "{% endfor %}"
    )
    shard = new_shard(tmp_path_factory.mktemp("shard"))
    with router_server(shard, new_tokenizer(), new_templates(source)) as server, server.client() as client:
        for streamed in (False, True):
            answer = client.post(CHAT, json={"messages": AGENT, "stream": streamed})
            assert answer.status_code == 422
            assert answer.json() == {
                "error": "Template error: only users, not assistant",
                "error_type": "template_error",
            }
        assert 'tgi_request_failure{err="template"} 2' in client.get("/metrics").text


def test_a_model_without_a_template_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        router_server(new_shard(tmp_path_factory.mktemp("shard")), new_tokenizer()) as server,
        server.client() as client,
    ):
        answer = client.post(CHAT, json={"messages": user("x")})
    assert answer.status_code == 422
    assert answer.json() == {"error": "Template error: template not found", "error_type": "template_error"}


# ------------------------------------------------------------------------------------------------ response formats

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}},
        {"type": "json_schema", "value": {"name": "x", "schema": SCHEMA}},
        {"type": "json_object", "value": SCHEMA},
        {"type": "json", "value": SCHEMA},
        {"type": "json", "value": json.dumps(SCHEMA)},
    ],
)
def test_a_schema_in_any_spelling_holds(client: httpx.Client, response_format: dict[str, Any]) -> None:
    """G09."""
    answer = chat(client, "x", response_format=response_format)
    jsonschema.validate(json.loads(answer["choices"][0]["message"]["content"]), SCHEMA)
    assert answer["choices"][0]["finish_reason"] == "stop"
    events = stream_chat(client, "x", response_format=response_format)
    assert content(events) == answer["choices"][0]["message"]["content"]


def test_other_formats(client: httpx.Client) -> None:
    """G09."""
    assert chat(client, "call", response_format={"type": "text"})["choices"][0]["message"]["content"] == "No tools."
    assert chat(client, "json")["choices"][0]["message"]["content"].startswith("Sure")
    text = chat(client, "json", response_format={"type": "json_object"})["choices"][0]["message"]["content"]
    assert text.startswith("{")
    answer = chat(client, "x", response_format={"type": "regex", "value": "[0-9]{3}"})
    assert answer["choices"][0]["message"]["content"].isdecimal()
    assert len(answer["choices"][0]["message"]["content"]) == 3


def test_each_choice_has_a_grammar_of_its_own(client: httpx.Client) -> None:
    answer = chat(client, "x", response_format={"type": "regex", "value": "[0-9]{9}"}, n=3, temperature=1)
    assert all(choice["message"]["content"].isdecimal() for choice in answer["choices"])


def test_grammars_can_be_switched_off(tmp_path_factory: pytest.TempPathFactory) -> None:
    shard = new_shard(tmp_path_factory.mktemp("shard"))
    with (
        router_server(shard, new_tokenizer(), new_templates(), disable_grammar_support=True) as server,
        server.client() as client,
    ):
        answer = client.post(CHAT, json={"messages": user("x"), "response_format": {"type": "json_object"}})
        assert answer.status_code == 422
        assert answer.json()["error"] == "Input validation error: grammar is not supported"
