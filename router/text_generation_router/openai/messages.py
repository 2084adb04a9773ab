"""Messages of a request to what a chat template sees: plain JSON data in transformers' form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from text_generation_router.errors import InvalidRequest
from text_generation_router.openai.schema import Message, MessageToolCall


def template_messages(messages: Sequence[Message], *, shows_tool_calls: bool) -> list[dict[str, Any]]:
    """
    Args:
        shows_tool_calls: whether the template prints `tool_calls`; if not, they become a message's text.
    Raises: InvalidRequest, naming the message.
    """
    if not messages:
        raise InvalidRequest("`messages` cannot be empty")
    return [_template_message(f"messages[{i}]", message, shows_tool_calls) for i, message in enumerate(messages)]


def _template_message(place: str, message: Message, shows_tool_calls: bool) -> dict[str, Any]:
    if message.content is None and not message.tool_calls:
        raise InvalidRequest(f"`{place}` must have `content` or `tool_calls`")
    # A key with null is a key that was not given: templates print it as "None".
    shown = {name: value for name, value in message.given.items() if value is not None}
    shown["content"] = _content(place, message)
    if message.tool_calls:
        calls = [_tool_call(call) for call in message.tool_calls]
        if shows_tool_calls:
            shown["tool_calls"] = calls
        elif not shown["content"]:
            shown["content"] = "\n".join(orjson.dumps(call["function"]).decode() for call in calls)
    return shown


def _content(place: str, message: Message) -> str:
    if message.content is None:
        return ""
    if isinstance(message.content, str):
        return message.content
    for index, part in enumerate(message.content):
        if part.type in {"image_url", "image"}:
            raise InvalidRequest(f"`{place}.content[{index}]`: image modality is not supported by this model")
        if part.type != "text" or part.text is None:
            raise InvalidRequest(
                f'`{place}.content[{index}]` must be {{"type": "text", "text": ...}}. Given type: {part.type}'
            )
    return "".join(part.text or "" for part in message.content)


def _tool_call(call: MessageToolCall) -> dict[str, Any]:
    """With arguments as an object, as templates want them; clients send the JSON text that they were given."""
    arguments = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            arguments = call.function.arguments
    shown: dict[str, Any] = {"type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
    return {"id": call.id, **shown} if call.id is not None else shown
