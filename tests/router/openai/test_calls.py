"""Calls are found in a model's text whatever the pieces it comes in, and other text comes through unchanged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text_generation_router.openai.calls import (
    CallArguments,
    CallStart,
    Content,
    ForcedCall,
    FoundCalls,
    JsonScanner,
    Part,
)

NAMES = frozenset({"get_t", "add"})
Called = list[tuple[str, Any]]


def read(calls: ForcedCall | FoundCalls, pieces: list[str]) -> tuple[str, Called]:
    parts: list[Part] = []
    for piece in pieces:
        parts.extend(calls.push(piece))
    parts.extend(calls.finish())
    content = "".join(part.text for part in parts if isinstance(part, Content))
    starts = [part for part in parts if isinstance(part, CallStart)]
    assert [start.index for start in starts] == list(range(len(starts)))
    assert len({start.call_id for start in starts}) == len(starts)
    found: Called = []
    for start in starts:
        text = "".join(part.text for part in parts if isinstance(part, CallArguments) and part.index == start.index)
        found.append((start.name, json.loads(text)))
    return content, found


OSLO = '{"name": "get_t", "arguments": {"city": "Oslo"}}'
ADD = '{"name": "add", "parameters": {"a": [1, {"b": "}"}], "c": "é\\"]"}}'
OSLO_CALL = ("get_t", {"city": "Oslo"})
ADD_CALL = ("add", {"a": [1, {"b": "}"}], "c": 'é"]'})

TEXTS: list[tuple[str, str, Called]] = [
    (OSLO, "", [OSLO_CALL]),
    (f"\n\n{ADD}\n", "", [ADD_CALL]),
    (f"[{OSLO}, {ADD}]", "", [OSLO_CALL, ADD_CALL]),
    (f"[TOOL_CALLS] [{OSLO}]", "", [OSLO_CALL]),
    (f"<|python_tag|>{ADD}", "", [ADD_CALL]),
    (f"{OSLO}; {ADD}", "", [OSLO_CALL, ADD_CALL]),
    (f"<tool_call>\n{OSLO}\n</tool_call>", "", [OSLO_CALL]),
    (f"<tool_call>\n{OSLO}\n</tool_call>\n<tool_call>\n{ADD}\n</tool_call>", "", [OSLO_CALL, ADD_CALL]),
    (f"Let me look.\n<tool_call>{OSLO}</tool_call>", "Let me look.\n", [OSLO_CALL]),
    (f"<tool_call>{OSLO}</tool_call>Done.", "Done.", [OSLO_CALL]),
    (f"```json\n{OSLO}\n```", "", [OSLO_CALL]),
    (f"```\n{OSLO}\n```\n", "", [OSLO_CALL]),
    ('{"function": {"name": "add", "arguments": "{\\"a\\": 1}"}}', "", [("add", {"a": 1})]),
    ('{"name": "add"}', "", [("add", {})]),
]
NO_CALLS = [
    "",
    "Hello.",
    " The answer is {a}. ",
    '{"name": "unknown", "arguments": {}}',
    '{"name": "add", "arguments": [1]}',
    '{"city": "Oslo"} is an object',
    "[1, 2]",
    "[TOOL_CALLS] none",
    "a <tool_call> without anything",
    f"<tool_call>{OSLO[:-2]}",
    f"The call is {OSLO}",
    "```python\nprint(1)\n```",
    "{broken}",
    "<tool_",
    "{",
]


@st.composite
def pieces(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(st.data(), st.sampled_from(TEXTS))
def test_calls_are_found_in_any_pieces(data: st.DataObject, case: tuple[str, str, Called]) -> None:
    text, content, expected = case
    calls = FoundCalls(NAMES)
    assert read(calls, data.draw(pieces(text))) == (content, expected)
    assert calls.num_calls == len(expected)


@given(st.data(), st.sampled_from(NO_CALLS))
def test_other_text_comes_through(data: st.DataObject, text: str) -> None:
    calls = FoundCalls(NAMES)
    assert read(calls, data.draw(pieces(text))) == (text, [])
    assert calls.num_calls == 0


@given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", OSLO, "{", "}", "[", "```json", " ", "a", '"', ";"])))
def test_any_mixture_ends_and_loses_no_words(parts: list[str]) -> None:
    calls = FoundCalls(NAMES)
    content, found = read(calls, parts)
    assert content.count("a") + sum(map(repr(found).count, ["'a'"])) <= "".join(parts).count("a")
    if not found:
        assert content == "".join(parts)


def test_ordinary_text_is_not_held_back() -> None:
    calls = FoundCalls(NAMES)
    assert list(calls.push("Hello ")) == [Content("Hello ")]
    assert list(calls.push("you <")) == [Content("you ")]
    assert list(calls.push("tool")) == []
    assert list(calls.push("box>")) == [Content("<toolbox>")]


@given(st.data())
def test_a_forced_call_gives_its_arguments_as_they_come(data: st.DataObject) -> None:
    arguments = '{"city": "Oslo \\"x\\" }", "n": [{"a": 1}]}'
    calls = ForcedCall()
    text = f' {{"name" : "get_t" ,\n"arguments": {arguments} }}\n'
    content, found = read(calls, data.draw(pieces(text)))
    assert (content, found) == ("", [("get_t", json.loads(arguments))])
    assert calls.is_complete


def test_a_forced_call_that_is_cut_off_is_not_complete() -> None:
    calls = ForcedCall()
    parts = [part for piece in ('{"name": "add", "argu', 'ments": {"a": ', '"12') for part in calls.push(piece)]
    assert isinstance(parts[0], CallStart)
    assert parts[0].name == "add"
    assert parts[1:] == [CallArguments(0, '{"a": '), CallArguments(0, '"12')]
    assert (calls.is_complete, calls.num_calls) == (False, 0)


@pytest.mark.parametrize("value", ["{}", "[]", '{"a":"}"}', '["\\"]", {"b": []}]'])
def test_a_value_ends_where_its_last_bracket_closes(value: str) -> None:
    assert JsonScanner().feed(value + "}] more") == len(value)
    scanner = JsonScanner()
    assert [scanner.feed(character) for character in value] == [None] * (len(value) - 1) + [1]
