"""Texts written token by token under a grammar, against `jsonschema` and Python's `re`."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.router.grammar.schemas import SCHEMAS
from tests.router.grammar.walking import BYTE_LEVEL, VOCABULARIES, allowed
from text_generation_router.grammar.spec import ANY_OBJECT, GrammarError, json_spec, regex_spec

RECURSIVE = {
    "properties": {"list": {"$ref": "#/$defs/node"}},
    "required": ["list"],
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "boolean"},
                "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
            },
            "required": ["value", "next"],
        }
    },
}
TOOLS = {
    "properties": {"function": {"anyOf": [{"$ref": "#/$functions/add"}, {"$ref": "#/$functions/now"}]}},
    "required": ["function"],
    "$functions": {
        "add": {
            "description": "Adds",
            "type": "object",
            "properties": {"_name": {"type": "string", "const": "add"}, "a": {"enum": [1, 2]}},
            "required": ["_name", "a"],
            "additionalProperties": False,
        },
        "now": {
            "type": "object",
            "properties": {"_name": {"type": "string", "const": "now"}},
            "required": ["_name"],
            "additionalProperties": False,
        },
    },
}
SOME_SCHEMAS: list[dict[str, Any]] = [
    RECURSIVE,
    TOOLS,
    {"properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}},
    {"properties": {"a": {"oneOf": [{"type": "boolean"}, {"type": "null"}]}}, "required": ["a"]},
    {
        "type": "object",
        "allOf": [
            {"properties": {"a": {"type": "boolean"}}, "required": ["a"]},
            {"properties": {"b": {"type": "null"}}, "required": ["b"]},
        ],
        "maxProperties": 2,
    },
    {
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": {"type": "null"},
        "maxProperties": 2,
    },
]


@settings(max_examples=80, deadline=None)
@given(SCHEMAS, st.integers(0, 10**6), st.sampled_from(VOCABULARIES))
def test_every_text_under_a_schema_is_json_that_the_schema_accepts(schema: Any, seed: int, vocabulary: Any) -> None:
    Draft202012Validator.check_schema(schema)
    text = vocabulary.walk(vocabulary.compile(json_spec(schema)), seed)
    assume(text is not None)
    Draft202012Validator(schema).validate(json.loads(text))


@pytest.mark.parametrize("schema", SOME_SCHEMAS)
def test_texts_under_kinds_of_schemas_that_people_send(schema: dict[str, Any]) -> None:
    grammar = BYTE_LEVEL.compile(json_spec(schema))
    texts = {text for seed in range(25) if (text := BYTE_LEVEL.walk(grammar, seed)) is not None}
    assert len(texts) > 1
    for text in texts:
        Draft202012Validator(schema).validate(json.loads(text))


@pytest.mark.parametrize(
    ("pattern", "wrong"),
    [
        ('^[^"]{2}$', '\\"'),
        (r"^[^\\]{2}$", r"\\"),
        ("^[^!-~]{2}$", '\\"'),
        (r'^x[^\s"]+$', '\\"'),
        (r'^\[[^"]*$', '\\"'),
        ('^(?:[a^]|[^"])b$', '\\"'),
    ],
)
def test_what_a_class_excludes_does_not_come_as_an_escape(pattern: str, wrong: str) -> None:
    grammar = BYTE_LEVEL.compile(json_spec({"type": "string", "pattern": pattern}))
    beginning = re.fullmatch(r"\^(x|\\\[|)(.*)", pattern)
    assert beginning is not None
    constraint = grammar.constraint()
    for character in '"' + beginning[1].removeprefix("\\") + wrong[0]:
        token_id = BYTE_LEVEL.data.index(character.encode())
        if token_id not in allowed(constraint.mask()):
            return
        constraint.accept(token_id)
    assert BYTE_LEVEL.data.index(wrong[1].encode()) not in allowed(constraint.mask())


def test_a_class_that_excludes_something_else_still_holds_line_ends() -> None:
    grammar = BYTE_LEVEL.compile(json_spec({"type": "string", "pattern": "^[^,;]{2}$"}))
    constraint = grammar.constraint()
    for character in '"\\':
        constraint.accept(BYTE_LEVEL.data.index(character.encode()))
    assert BYTE_LEVEL.data.index(b"n") in allowed(constraint.mask())


def test_keys_come_in_the_schema_s_order_and_only_they() -> None:
    names = ["zebra", "apple", "mango"]
    schema = {"properties": {name: {"type": "null"} for name in names}, "required": ["apple"]}
    grammar = BYTE_LEVEL.compile(json_spec(schema, needs_properties=True))
    key_lists = {tuple(json.loads(BYTE_LEVEL.walk(grammar, seed) or "")) for seed in range(60)}
    assert key_lists == {
        ("zebra", "apple", "mango"),
        ("zebra", "apple"),
        ("apple", "mango"),
        ("apple",),
    }


def test_at_most_one_space_stands_between_two_tokens() -> None:
    schema = {"properties": {"a": {"type": "array", "items": {"type": "null"}, "maxItems": 3}}, "required": ["a"]}
    grammar = BYTE_LEVEL.compile(json_spec(schema))
    texts = [BYTE_LEVEL.walk(grammar, seed) or "" for seed in range(60)]
    assert any(" " in text for text in texts)
    assert any(" " not in text for text in texts)
    for text in texts:
        assert not re.search(r"\s\s|[^\S ]|^ | $", text)


def test_any_object_is_an_object() -> None:
    grammar = BYTE_LEVEL.compile(ANY_OBJECT)
    texts = [text for seed in range(40) if (text := BYTE_LEVEL.walk(grammar, seed, max_tokens=2000)) is not None]
    assert len(texts) > 10
    assert all(isinstance(json.loads(text), dict) for text in texts)


PATTERNS = [
    "[0-9]{4}", r"\d{2}-[^\d]", "(yes|no)( sir)?", "^a+$", "a/b", r"a\/b", "x\ny", "\t|[a-c]", "é😀[à-ü]", "#[^#]*",
    r"\\+\"'`", "[^a]b", "(?i)stop", "a.c", "(a|b)*c", "[]a]", "start: %json", r"(?P<year>\d{4})", "/", "//",
    "x{0,3}y?",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=("byte level", "byte fallback"))
def test_the_whole_text_matches_the_pattern(pattern: str, vocabulary: Any) -> None:
    grammar = vocabulary.compile(regex_spec(pattern))
    for seed in range(8):
        text = vocabulary.walk(grammar, seed)
        assert text is not None
        assert re.fullmatch(pattern, text), text


LETTERS = st.sampled_from(list("ab/\\\"'#`%\n\r\t :{}é😀.*"))


@settings(max_examples=80, deadline=None)
@given(st.text(LETTERS, min_size=1, max_size=8))
def test_an_escaped_text_matches_itself_and_nothing_else(text: str) -> None:
    """A pattern is written into the engine's own language: no character of it may break out."""
    grammar = BYTE_LEVEL.compile(regex_spec(re.escape(text)))
    assert BYTE_LEVEL.walk(grammar, 0) == text


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from(list("ab()[]{}|*+?.\\/^$,1-\n#")), max_size=7), st.integers(0, 100))
def test_a_random_pattern_is_refused_in_one_line_or_means_what_re_means(pattern: str, seed: int) -> None:
    try:
        grammar = BYTE_LEVEL.compile(regex_spec(pattern))
    except GrammarError as refusal:
        message = str(refusal)
        assume(False)
        assert "\n" not in message
    text = BYTE_LEVEL.walk(grammar, seed)
    try:
        compiled = re.compile(pattern)
    except re.error:
        return
    assert text is None or compiled.fullmatch(text), text
