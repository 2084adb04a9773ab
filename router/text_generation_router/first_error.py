"""Models that do not describe more than the first wrong item of a list or object.

By itself pydantic reports every one, at 5 µs each and more: a body of 2 MB with half a million numbers where texts
belong held up the event loop for seconds, for an answer that names the first of them.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema


def _stop_early(schema: Any) -> None:
    """In place, down to the models below, which look after themselves."""
    if isinstance(schema, list | tuple):
        for part in schema:
            _stop_early(part)
    elif isinstance(schema, dict):
        if schema.get("type") in {"list", "dict"}:
            schema["fail_fast"] = True
        for key in ("schema", "items_schema", "values_schema", "choices", "definitions"):
            _stop_early(schema.get(key))
        fields = schema.get("fields")
        _stop_early(list(fields.values()) if isinstance(fields, dict) else fields)


class FirstErrorModel(BaseModel):
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _stop_early(schema)
        return schema
