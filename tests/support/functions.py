"""Functions that a model may call."""

from __future__ import annotations

from typing import Any


def function(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": "é", "parameters": parameters}}
