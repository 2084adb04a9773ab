"""Which functions a request lets the model call, how it is told about them, and the grammar of a call that is forced.

Under `auto` the model answers freely and calls are found in its text (see calls): templates show tools in the form the
model was trained on, and a grammar over both a call and free text would forbid that form, or take away the streaming.
Under `required`, or with a function named, the answer is a call by grammar: `{"name": ..., "arguments": {...}}`, the
form inside most models' own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from text_generation_router.grammar.spec import WriteSpec, json_spec
from text_generation_router.openai.errors import ToolError
from text_generation_router.openai.schema import ChatRequest, Tool

_DEFAULT_PROMPT = (
    "\nTo call one of these functions, answer with nothing but one JSON object of this form, with real values and no "
    'variables: {"name": the function\'s name, "arguments": an object of its arguments}\n'
)
_ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions that the model may call."""

    tools: Sequence[Tool]
    is_forced: bool  # the answer is a call, by grammar

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.function.name for tool in self.tools)

    def shown(self) -> list[dict[str, Any]]:
        """For a chat template."""
        return [_shown(tool) for tool in self.tools]

    def prompt(self, tool_prompt: str | None, *, template_shows_tools: bool) -> str:
        """What to put after the last message. A template that shows tools says by itself how they are called."""
        if template_shows_tools:
            return f"\n---\n{tool_prompt}" if tool_prompt else ""
        return f"\n---\n{orjson.dumps(self.shown()).decode()}\n{tool_prompt or _DEFAULT_PROMPT}"

    def grammar(self) -> WriteSpec:
        """Of a forced call. Raises ToolError."""
        # References inside a function's schema are meant from its own root.
        try:
            definitions = {
                f"tool_{index}": _rebased(_parameters(tool), f"#/$defs/tool_{index}")
                for index, tool in enumerate(self.tools)
            }
        except RecursionError:
            raise ToolError("the parameters of a function are nested too deeply") from None
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.function.name},
                    "arguments": {"$ref": f"#/$defs/tool_{index}"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for index, tool in enumerate(self.tools)
        ]
        call: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
        return partial(json_spec, {**call, "$defs": definitions})


def tool_use(body: ChatRequest) -> ToolUse | None:
    """What a request asks for; None if there is nothing to call. Raises ToolError."""
    tools = body.tools or []
    choice = body.tool_choice if body.tool_choice is not None else "auto"
    if choice == "none":
        return None
    if choice == "auto":
        return ToolUse(tools, is_forced=False) if tools else None
    if choice == "required":
        if not tools:
            raise ToolError("`tool_choice` is `required`, but there are no `tools`")
        return ToolUse(tools, is_forced=True)
    name = choice if isinstance(choice, str) else choice.function.name
    chosen = [tool for tool in tools if tool.function.name == name]
    if not chosen:
        raise ToolError(f"Tool with name {name} not found")
    return ToolUse(chosen, is_forced=True)


def _shown(tool: Tool) -> dict[str, Any]:
    """As given, so that keys keep their order, but with the schema where templates look for it."""
    function = dict(tool.given["function"])
    function.pop("arguments", None)
    function["parameters"] = tool.function.parameters or _ANY_ARGUMENTS
    return {"type": "function", **tool.given, "function": function}


def _parameters(tool: Tool) -> dict[str, Any]:
    return {**(tool.function.parameters or {}), "type": "object"}


def _rebased(schema: Any, root: str) -> Any:
    """The schema with its local references moved below `root`."""
    if isinstance(schema, list):
        return [_rebased(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: root + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _rebased(value, root)
        for key, value in schema.items()
    }
