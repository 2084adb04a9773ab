"""Random JSON schemas whose instances are short."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "name", "größe", 'quo"te', "x y", "0", "é\n"])
TEXTS = st.sampled_from(["", "a", 'q"', "é", "\\", "null", "a b\n", "😀"])
LEAVES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}, {"format": "uuid"}]),
    st.builds(lambda least, more: {"type": "integer", "minimum": least, "maximum": least + more},
              st.integers(-200, 200), st.integers(0, 300)),
    st.builds(lambda least, more: {"type": "number", "exclusiveMinimum": least, "maximum": least + more},
              st.integers(-20, 20), st.integers(1, 30)),
    st.builds(lambda least, more: {"type": "string", "minLength": least, "maxLength": least + more},
              st.integers(0, 3), st.integers(0, 3)),
    st.builds(lambda pattern: {"type": "string", "pattern": pattern},
              st.sampled_from(["^[a-z]{1,3}$", "^(ab|cd)?$", "^é+x$", "^\\d{3}-\\d$", "^[^\"]{2}$"])),
    st.builds(lambda name: {"type": "string", "format": name},
              st.sampled_from(["date", "time", "date-time", "ipv4", "uuid", "password"])),
    st.builds(lambda values: {"enum": values},
              st.lists(st.one_of(TEXTS, st.integers(-9, 9), st.booleans(), st.none()), min_size=1, max_size=3)),
    st.builds(lambda value: {"const": value},
              st.one_of(TEXTS, st.lists(st.integers(0, 3), max_size=2), st.dictionaries(NAMES, TEXTS, max_size=2))),
    st.builds(lambda step: {"type": "integer", "multipleOf": step, "minimum": 0, "maximum": 999}, st.integers(1, 50)),
)  # fmt: skip


def _object(properties: dict[str, Any], required: int, more: str) -> dict[str, Any]:
    """`required`: bit i requires the i-th property."""
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    schema["required"] = [name for place, name in enumerate(properties) if required >> place & 1]
    if more == "closed":
        schema["additionalProperties"] = False
    elif more == "typed":
        schema["additionalProperties"] = {"type": "boolean"}
        schema["maxProperties"] = len(properties) + 1
    return schema


def _objects(values: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    properties = st.dictionaries(NAMES, values, min_size=1, max_size=4)
    return st.builds(_object, properties, st.integers(0, 15), st.sampled_from(["", "closed"]))


def _compound(values: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        _objects(values),
        st.builds(lambda items, least, more: {"type": "array", "items": items, "minItems": least,
                                              "maxItems": least + more},
                  values, st.integers(0, 2), st.integers(0, 2)),
        st.builds(lambda first, second: {"type": "array", "prefixItems": [first, second], "items": False},
                  values, values),
        st.builds(lambda first, second: {"anyOf": [first, second]}, values, values),
    )  # fmt: skip


SCHEMAS = _objects(st.recursive(LEAVES, _compound, max_leaves=5))
