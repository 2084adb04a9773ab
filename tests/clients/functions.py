"""The functions that clients offer to the model."""

from __future__ import annotations

from tests.support.functions import function

TOOLS = [function("get_t", city={"type": "string", "maxLength": 5}), function("add", a={"enum": [1, 2]})]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
