"""Grammars on a whole server with a real vocabulary: each rules its own request, whatever else runs."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import jsonschema
import pytest

from tests.support.asking import Question, ask, ask_at_once, client_of, prompt_of
from tests.support.servers import Server

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
}
JSON = {"type": "json", "value": SCHEMA}
DIGITS = {"type": "regex", "value": "[0-9]{4}"}


def test_two_grammars_and_two_free_texts_at_once(one_shard: Server) -> None:
    """G33: each obeys its own and ends by itself; free text is what it is alone."""
    prompts = [prompt_of(5 + 9 * index, seed=33) for index in range(4)]
    with client_of(one_shard) as client:
        alone = [ask(client, prompt, max_new_tokens=60) for prompt in prompts[2:]]
    given: list[dict[str, Any]] = [{"grammar": JSON}, {"grammar": DIGITS}, {}, {}]
    questions = [
        Question(prompt, {"max_new_tokens": 60, **parameters})
        for prompt, parameters in zip(prompts, given, strict=True)
    ]
    for _ in range(3):
        in_json, in_digits, *free = ask_at_once(one_shard, questions)
        jsonschema.validate(json.loads(in_json.text), SCHEMA)
        assert re.fullmatch("[0-9]{4}", in_digits.text)
        assert in_json.finish_reason == in_digits.finish_reason == "eos_token"
        assert [answer.ids for answer in free] == [answer.ids for answer in alone]


def test_a_grammar_that_is_cut_short_says_so(one_shard: Server) -> None:
    """G33."""
    with client_of(one_shard) as client:
        answer = ask(client, "x", grammar=JSON, max_new_tokens=3)
    assert answer.finish_reason == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer.text)


BAD: list[dict[str, Any]] = [
    {"type": "regex", "value": "("},
    {"type": "regex", "value": "foo**"},
    {"type": "regex", "value": "(ab)*" * 20_000},
    {"type": "json", "value": []},
    {"type": "json", "value": "text"},
    {"type": "json", "value": {"type": "object"}},
    {"type": "json", "value": {"properties": {"a": {"$ref": "#/$defs/nowhere"}}}},
    {"type": "json", "value": {"properties": {"a": {"$ref": "#"}}, "required": ["a"]}},
]


@pytest.mark.parametrize("grammar", BAD, ids=[str(grammar["value"])[:30] for grammar in BAD])
def test_a_bad_grammar_harms_only_its_sender(one_shard: Server, grammar: dict[str, Any]) -> None:
    """G34: a reason, or an answer; the next request is served as ever."""
    prompt = prompt_of(12, seed=34)
    with client_of(one_shard) as client:
        expected = ask(client, prompt, max_new_tokens=5)
        body = {"inputs": "x", "parameters": {"max_new_tokens": 5, "grammar": grammar}}
        answer: httpx.Response = client.post("/generate", json=body)
        assert answer.status_code in {200, 422}
        if answer.status_code == 422:
            assert answer.json()["error_type"] == "validation"
            assert answer.json()["error"].startswith("Input validation error: ")
        assert ask(client, prompt, max_new_tokens=5).ids == expected.ids
        assert client.get("/health").status_code == 200
