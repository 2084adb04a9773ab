"""`response_format` and tools that no client of good will sends, and schemas without top-level properties."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.router.openai.asking import CHAT, chat, user

POINT = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}
ROOTS: dict[str, dict[str, Any]] = {
    "$ref": {"$ref": "#/$defs/point", "$defs": {"point": POINT}},
    "anyOf": {"anyOf": [POINT, {"type": "boolean"}]},
    "anyOf of references": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": POINT, "b": POINT}},
    "enum": {"enum": ["red", "green"]},
    "array": {"type": "array", "items": POINT, "minItems": 1, "maxItems": 2},
}


@pytest.mark.parametrize("name", ROOTS)
@pytest.mark.parametrize("spelling", ["OpenAI", "TGI"])
def test_a_schema_need_not_be_an_object_with_properties(client: httpx.Client, name: str, spelling: str) -> None:
    """G09: unlike in /generate, where TGI wants them."""
    schema = ROOTS[name]
    response_format: dict[str, Any] = {"type": "json", "value": schema}
    if spelling == "OpenAI":
        response_format = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    for question in ("a", "bc"):
        choice = chat(client, question, response_format=response_format, max_tokens=60)["choices"][0]
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
KEYS = st.sampled_from(["type", "value", "json_schema", "schema", "name", "strict", "function", "parameters"])
KEYWORDS = st.sampled_from(["properties", "required", "anyOf", "$ref", "items", "enum", "minLength", "pattern"])
KINDS = st.sampled_from(["json", "json_object", "json_schema", "regex", "text"])
WORDS = KINDS | st.sampled_from(["object", "string", "array", "function", "required", "#"])
JSON = st.recursive(
    LEAVES | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | KEYWORDS | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
FORMATS = JSON | st.fixed_dictionaries(
    {"type": KINDS}, optional={"value": JSON, "json_schema": JSON | st.fixed_dictionaries({"schema": JSON})}
)
TOOLS = JSON | st.lists(
    st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": st.text(), "parameters": JSON})}), max_size=2
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=st.fixed_dictionaries({"response_format": FORMATS})
    | st.fixed_dictionaries({"tools": TOOLS, "tool_choice": JSON})
    | st.fixed_dictionaries({"tools": TOOLS, "tool_choice": st.just("required")})
)
def test_whatever_is_sent_is_an_answer_or_a_reason(client: httpx.Client, fields: dict[str, Any]) -> None:
    answer = client.post(CHAT, json={"messages": user("x"), "max_tokens": 1, **fields})
    if answer.status_code == 200:
        return
    # What is no JSON is half of a surrogate pair, or an integer that nobody can read.
    assert answer.status_code in {400, 422}, answer.text
    content = answer.json()
    assert content.keys() == {"error", "error_type"}
    assert content["error_type"] in {"validation", "tool_error"}
    assert content["error"]
    assert "\n" not in content["error"]
