"""`response_format` in OpenAI's and TGI's spellings.

A shape that is none of them is refused at once; what is wrong with a grammar itself is said in the order of the rules.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from text_generation_router.errors import InvalidRequest
from text_generation_router.grammar.spec import ANY_OBJECT, WriteSpec, json_spec, regex_spec
from text_generation_router.openai.schema import RESPONSE_FORMATS


def response_grammar(response_format: dict[str, Any] | None) -> WriteSpec | None:
    """None: free text. Raises InvalidRequest."""
    if response_format is None:
        return None
    kind = response_format.get("type")
    if kind not in RESPONSE_FORMATS:
        raise InvalidRequest(f"`response_format.type` must be one of {', '.join(RESPONSE_FORMATS)}. Given: {kind}")
    if kind == "text":
        return None
    value = response_format.get("value")
    if kind == "json_object" and value is None:
        return lambda: ANY_OBJECT
    if kind == "regex":
        if not isinstance(value, str):
            raise InvalidRequest("`response_format.value` must be a regular expression as a text")
        return partial(regex_spec, value)
    return partial(json_spec, _schema(kind, response_format))


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
