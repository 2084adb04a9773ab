"""The check of JSON schemas, beside jsonschema's own reading of the meta-schema, and how they are narrowed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, SchemaError

from text_generation_router.grammar.combinations import MAX_COMBINATIONS
from text_generation_router.grammar.schema import MAX_PARTS, prepare_schema
from text_generation_router.grammar.spec import GrammarError

KEYWORDS = [
    *("type", "enum", "required", "dependentRequired", "multipleOf", "minimum", "exclusiveMaximum", "minLength"),
    *("maxItems", "minProperties", "uniqueItems", "pattern", "format", "title", "properties", "patternProperties"),
    *("$defs", "allOf", "anyOf", "oneOf", "prefixItems", "items", "additionalProperties", "not", "contains"),
    *("propertyNames", "description", "examples", "default", "const", "deprecated", "unknown keyword"),
]
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 3),
        st.sampled_from([1.0, 1.5, "string", "object", "a", "integer"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(st.sampled_from(["string", "object", "a", "null"]), max_size=2),
        st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=3),
    ),
    max_leaves=8,
)


def is_schema(schema: Any) -> bool:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        return False
    return True


@settings(max_examples=200, deadline=None)
@given(st.one_of(VALUES, st.dictionaries(st.sampled_from(KEYWORDS), VALUES, max_size=4)))
def test_what_is_a_schema_is_decided_as_the_meta_schema_does(schema: Any) -> None:
    try:
        prepare_schema(json.dumps(schema), False)
        accepted = True
    except GrammarError as refusal:
        accepted = str(refusal).startswith("cannot compile regex from schema: ")
    assert accepted == is_schema(schema)


def narrowed(schema: Any) -> Any:
    prepared = json.loads(prepare_schema(json.dumps(schema), False))
    del prepared["x-guidance"]
    return prepared


def test_properties_without_a_type_mean_an_object() -> None:
    assert narrowed({"properties": {}}) == {"properties": {}, "type": "object"}
    assert narrowed({"properties": {}, "type": ["object", "null"]})["type"] == ["object", "null"]


def test_an_object_holds_the_listed_properties_only() -> None:
    closed = narrowed({"properties": {"a": {"items": {"properties": {"b": {}}}}}})
    assert closed["additionalProperties"] is False
    assert closed["properties"]["a"]["items"]["additionalProperties"] is False


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {}},
        {"properties": {"a": {}}, "additionalProperties": True},
        {"properties": {"a": {}}, "additionalProperties": {"type": "string"}},
        {"properties": {"a": {}}, "patternProperties": {"^b": {}}},
        {"properties": {"a": {}}, "minProperties": 2},
        {"properties": {"a": {}}, "required": ["b"]},
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"$ref": "#/$defs/a", "properties": {"b": {}}, "$defs": {"a": {"properties": {"a": {}}}}},
        {"required": ["b"], "anyOf": [{"properties": {"a": {}}}]},
    ],
)
def test_an_object_stays_open_where_it_says_so_or_could_not_be_written_otherwise(schema: Any) -> None:
    assert json.dumps(narrowed(schema)).count('"additionalProperties": false') == 0


def test_formats_that_nobody_can_check_are_annotations() -> None:
    schema = {"properties": {"a": {"format": "password"}, "b": {"format": "date"}, "format": {"type": "string"}}}
    properties = narrowed(schema)["properties"]
    assert properties == {"a": {}, "b": {"format": "date"}, "format": {"type": "string"}}


def test_a_client_does_not_reach_the_engine_s_options() -> None:
    prepared = prepare_schema('{"properties": {"a": {"x-guidance": {}}}, "x-guidance": {"lenient": true}}', True)
    assert "lenient" not in prepared
    assert prepared.count("x-guidance") == 1


def test_names_keep_their_order() -> None:
    names = list("zebra crossing"[:5])
    assert list(narrowed({"properties": {name: {} for name in names}})["properties"]) == names


def test_a_schema_of_many_parts_is_refused_and_not_compiled_for_seconds() -> None:
    prepare_schema(json.dumps({"properties": {str(n): {} for n in range(MAX_PARTS - 1)}}), True)
    with pytest.raises(GrammarError, match=f"^cannot compile regex from schema: it has more than {MAX_PARTS} parts$"):
        prepare_schema(json.dumps({"properties": {str(n): {} for n in range(MAX_PARTS)}}), True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"properties": ', "grammar is not valid: unexpected end of data at line 1 column 16"),
        ("[]", "grammar is not valid: it must be an object, true or false"),
        ("{}", "grammar is not valid: Grammar must have a 'properties' field"),
        ("true", "grammar is not valid: Grammar must have a 'properties' field"),
        ('{"type": "object"}', "grammar is not valid: Grammar must have a 'properties' field"),
        ('{"properties": []}', "grammar is not valid: `properties` must be an object of schemas"),
        ('{"properties": {"a": 1}}', "grammar is not valid: `properties.a` must be an object, true or false"),
        (
            '{"properties": {"a": {"anyOf": [{"minLength": -1}]}}}',
            "grammar is not valid: `properties.a.anyOf.0.minLength` must be a non-negative integer",
        ),
    ],
)
def test_the_first_thing_wrong_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(GrammarError) as refusal:
        prepare_schema(text, True)
    assert str(refusal.value) == message


@pytest.mark.parametrize("depth", [100, 300, 900, 2000])
def test_deep_nesting_is_an_answer_and_no_crash(depth: int) -> None:
    text = '{"properties":{"a":' * depth + "{}" + "}}" * depth
    if depth == 100:
        assert prepare_schema(text, True)
    else:
        with pytest.raises(GrammarError, match=r"nested too deeply|depth limit"):
            prepare_schema(text, True)


def choice(num_branches: int) -> dict[str, Any]:
    return {"anyOf": [{"const": n} for n in range(num_branches)]}


MANY = [
    {"allOf": [choice(2)] * 11},
    {"allOf": [choice(33), choice(33)]},
    {"allOf": [{"$ref": "#/$defs/a~1b"}] * 4, "$defs": {"a/b": choice(6)}},
    {"anyOf": [choice(600), choice(600)], "oneOf": [{}, {}]},
    {"properties": {"a": {"allOf": [{"allOf": [choice(6), choice(6)]}, {"allOf": [choice(6), choice(6)]}]}}},
]
FEW = [
    {"allOf": [choice(2)] * 10},
    choice(1500),
    {"properties": {str(n): choice(3) for n in range(300)}},
    {"allOf": [{"$ref": "#"}, {"$ref": "#"}, choice(2)]},
    {"allOf": [{"$ref": "#/$defs/none"}, {"$ref": "elsewhere"}, {"$ref": "#/allOf/7"}] * 12},
    {"$ref": "#/$defs/0", "$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(1500)}},
]


@pytest.mark.parametrize("schema", MANY)
def test_branches_that_multiply_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match=f"more than {MAX_COMBINATIONS} combinations$"):
        prepare_schema(json.dumps(schema), False)


@pytest.mark.parametrize("schema", FEW)
def test_branches_that_only_add_up_are_not(schema: dict[str, Any]) -> None:
    assert prepare_schema(json.dumps(schema), False)


def test_required_keys_without_a_schema_count_as_parts() -> None:
    with pytest.raises(GrammarError, match="parts"):
        prepare_schema(json.dumps({"properties": {"a": {}}, "required": [str(n) for n in range(MAX_PARTS)]}), True)
