"""JSON schemas before they are compiled: checked as the meta-schema of draft 2020-12 would, and narrowed.

What is generated under the narrowed schema is valid under the given one. Objects are compiled as TGI does it:

- `properties` without `type` means an object;
- an object holds the properties that are listed, in their order, and no others unless `additionalProperties` or a like
  keyword says so: a model that may invent more of them rarely ends;
- one space may stand between two tokens, and nothing else;
- a `format` that nobody can check is the annotation that it is in JSON Schema;
- a class such as `[^"]`, which excludes quotes or backslashes, excludes control characters too: the engine (llguidance
  1.9.1) lets all escapes into a class that holds control characters, and with them what was excluded;
- `oneOf` is taken as `anyOf`: branches that overlap cannot be told apart while writing. This alone may give an answer
  that the schema refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from text_generation_router.grammar.combinations import MAX_COMBINATIONS, Combinations
from text_generation_router.grammar.spec import GrammarError

Schema = dict[str, Any]

# Schemas within the schema, and required keys without one. Compiling takes time by their square, half a second for 2000
# of them.
MAX_PARTS = 2000
_MAX_SHOWN = 100  # characters of a path

_OPTIONS = {"whitespace_flexible": True, "whitespace_pattern": "[ ]", "coerce_one_of": True}
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)  # that the engine knows


# An escape, a class, or a negated class, whose content is the one group.
_CLASS = re.compile(r"\\.|\[(?!\^)\]?(?:\\.|[^\\\]])*\]|\[\^(\]?(?:\\.|[^\\\]])*)\]", re.DOTALL)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 and value == int(value)


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _is_type(value: object) -> bool:
    names = [value] if isinstance(value, str) else value
    return isinstance(names, list) and bool(names) and _are_names(names) and _TYPES.issuperset(names)


def _are_lists_of_names(value: object) -> bool:
    return isinstance(value, dict) and all(map(_are_names, value.values()))


Check = tuple[Callable[[object], bool], str]

_STRING: Check = (lambda value: isinstance(value, str), "a string")
_BOOLEAN: Check = (lambda value: isinstance(value, bool), "true or false")
_COUNT: Check = (_is_count, "a non-negative integer")
_NUMBER: Check = (_is_number, "a number")
_ARRAY: Check = (lambda value: isinstance(value, list), "an array")

_VALUES: dict[str, Check] = {
    "type": (_is_type, f"one or more of {', '.join(sorted(_TYPES))}"),
    "enum": _ARRAY,
    "required": (_are_names, "an array of different strings"),
    "dependentRequired": (_are_lists_of_names, "an object of arrays of different strings"),
    "multipleOf": (_is_positive, "a number above 0"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _COUNT),
    **dict.fromkeys(("minProperties", "maxProperties", "minContains", "maxContains"), _COUNT),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _BOOLEAN),
    **dict.fromkeys(("pattern", "format", "title", "description", "$comment", "$ref", "$dynamicRef"), _STRING),
    **dict.fromkeys(("$id", "$schema", "$anchor", "$dynamicAnchor", "contentEncoding", "contentMediaType"), _STRING),
    "examples": _ARRAY,
}
_SCHEMA_MAPS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
    | {"$functions"}  # where TGI keeps the schemas of tools
)
_SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMAS = frozenset(
    {"additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames"}
    | {"unevaluatedItems", "unevaluatedProperties", "contentSchema"}
)

# Keywords about the same value as the schema that they stand in, and those about an object's keys.
_IN_PLACE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "$ref", "$dynamicRef"})
_ABOUT_KEYS = frozenset(
    {"properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames"}
    | {"required", "dependentRequired", "minProperties", "maxProperties"}
)


def prepare_schema(text: str, needs_properties: bool) -> str:
    """The schema to compile, as JSON.

    Raises: GrammarError for what is not a schema, has no top-level `properties` where they are needed, or is too large.
    """
    try:
        schema = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise GrammarError.invalid(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    subschemas = list(_subschemas(schema))
    if needs_properties and (not isinstance(schema, dict) or "properties" not in schema):
        raise GrammarError.invalid("Grammar must have a 'properties' field")
    if schema is False:
        raise GrammarError.refused("nothing satisfies it")
    combinations = Combinations(schema)
    if any(combinations.are_too_many(subschema) for subschema in subschemas):
        raise GrammarError.refused(f"its branches have more than {MAX_COMBINATIONS} combinations")
    _narrow(subschemas)
    try:
        return orjson.dumps({**(schema if isinstance(schema, dict) else {}), "x-guidance": _OPTIONS}).decode()
    except TypeError:
        raise GrammarError.refused("it is nested too deeply") from None


def _subschemas(root: object) -> Iterator[Schema]:
    """Every schema in a schema that is an object, checked. Raises: GrammarError."""
    waiting: list[tuple[object, str]] = [(root, "")]
    num_seen = 0
    while waiting:
        schema, path = waiting.pop()
        num_seen += 1
        if num_seen > MAX_PARTS:
            raise GrammarError.refused(f"it has more than {MAX_PARTS} parts")
        if isinstance(schema, bool):
            continue
        if not isinstance(schema, dict):
            raise _wrong(path, "an object, true or false")
        num_seen += _num_unlisted(schema)
        for keyword, value in schema.items():
            here = f"{path}.{keyword}" if path else keyword
            if keyword in _VALUES:
                is_right, wanted = _VALUES[keyword]
                if not is_right(value):
                    raise _wrong(here, wanted)
            elif keyword in _SCHEMAS:
                waiting.append((value, here))
            elif keyword in _SCHEMA_LISTS:
                if not isinstance(value, list) or not value:
                    raise _wrong(here, "an array of schemas, at least one")
                waiting.extend((item, f"{here}.{index}") for index, item in enumerate(value))
            elif keyword in _SCHEMA_MAPS:
                if not isinstance(value, dict):
                    raise _wrong(here, "an object of schemas")
                waiting.extend((item, f"{here}.{name}") for name, item in value.items())
        yield schema


def _num_unlisted(schema: Schema) -> int:
    required, properties = schema.get("required"), schema.get("properties")
    if not isinstance(required, list):
        return 0
    return sum(not isinstance(properties, dict) or name not in properties for name in required if isinstance(name, str))


def _wrong(path: str, wanted: str) -> GrammarError:
    shown = path if len(path) <= _MAX_SHOWN else f"...{path[-_MAX_SHOWN:]}"
    return GrammarError.invalid(f"`{shown}` must be {wanted}" if shown else f"it must be {wanted}")


def _narrow(schemas: list[Schema]) -> None:
    """In place. See the module's docstring."""
    # Keys that one part lists may be another's, if parts are about the same object: then none of them may be closed.
    is_combined = any(
        "allOf" in schema or (_IN_PLACE & schema.keys() and _ABOUT_KEYS & schema.keys()) for schema in schemas
    )
    for schema in schemas:
        schema.pop("x-guidance", None)
        if schema.get("format") not in _FORMATS:
            schema.pop("format", None)
        if "pattern" in schema:
            schema["pattern"] = _without_controls(schema["pattern"])
        if "patternProperties" in schema:
            properties = schema["patternProperties"].items()
            schema["patternProperties"] = {_without_controls(pattern): value for pattern, value in properties}
        if "properties" in schema and not {"type", "const", "enum"} & schema.keys():
            schema["type"] = "object"
        if not is_combined and _lists_its_keys(schema):
            schema["additionalProperties"] = False


def _without_controls(pattern: str) -> str:
    """A pattern whose negated classes hold no control characters, if they may exclude a quote or a backslash."""

    def narrowed(found: re.Match[str]) -> str:
        content = found[1]
        if content is None or not set('"\\-[&') & set(content):
            return found[0]
        return rf"[^\x00-\x1f{content}]"

    return _CLASS.sub(narrowed, pattern)


def _lists_its_keys(schema: Schema) -> bool:
    """Whether an object of these properties and no others is what is meant, and possible."""
    says_more = {"additionalProperties", "unevaluatedProperties", "patternProperties", "minProperties"} & schema.keys()
    properties: Schema = schema.get("properties", {})
    return bool(properties) and not says_more and set(schema.get("required", ())) <= properties.keys()
