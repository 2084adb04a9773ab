"""`response_format` in OpenAI's and TGI's spellings."""

from __future__ import annotations

from typing import Any

from text_generation_router.errors import InvalidRequest
from text_generation_router.grammar.spec import ANY_OBJECT, GrammarError, GrammarSpec, json_spec, regex_spec

_KNOWN = ("text", "json_object", "json_schema", "json", "regex")


def response_grammar(response_format: dict[str, Any] | None) -> GrammarSpec | None:
    """None: free text. Raises InvalidRequest."""
    if response_format is None:
        return None
    kind = response_format.get("type")
    if kind not in _KNOWN:
        raise InvalidRequest(f"`response_format.type` must be one of {', '.join(_KNOWN)}. Given: {kind}")
    if kind == "text":
        return None
    value = response_format.get("value")
    if kind == "json_object" and value is None:
        return ANY_OBJECT
    try:
        return _regex(value) if kind == "regex" else json_spec(_schema(kind, response_format))
    except GrammarError as error:
        raise InvalidRequest(str(error)) from error


def _regex(value: Any) -> GrammarSpec:
    if not isinstance(value, str):
        raise InvalidRequest("`response_format.value` must be a regular expression as a text")
    return regex_spec(value)


def _schema(kind: str, response_format: dict[str, Any]) -> Any:
    """OpenAI names the schema inside `json_schema`, TGI inside `value`, or has it there as it is."""
    if kind == "json_schema":
        named = response_format.get("json_schema", response_format.get("value"))
        if not isinstance(named, dict) or "schema" not in named:
            raise InvalidRequest("`response_format.json_schema.schema` is missing")
        return named["schema"]
    if response_format.get("value") is None:
        raise InvalidRequest("`response_format.value` is missing")
    return response_format["value"]
