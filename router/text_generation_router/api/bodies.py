"""Reads a request's body and checks its shape. Takes any content type, since curl names a wrong one by default."""

from __future__ import annotations

from typing import TypeVar

import orjson
from fastapi import Request
from pydantic import BaseModel, ValidationError

from text_generation_router.api.disconnect import ClientDisconnected
from text_generation_router.errors import BodyMismatch, BodyNotJson, BodyTooLarge

Body = TypeVar("Body", bound=BaseModel)

_MAX_SHOWN = 80  # characters of a wrong value


async def read_body(request: Request, model: type[Body], limit_bytes: int) -> Body:
    """Raises: BodyTooLarge, BodyNotJson, BodyMismatch, ClientDisconnected."""
    return parse_body(await _read(request, limit_bytes), model)


def parse_body(data: bytes, model: type[Body]) -> Body:
    """Raises: BodyNotJson, BodyMismatch."""
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BodyNotJson(error.msg, error.lineno, error.colno) from None
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = ".".join(str(part) for part in first["loc"]) or "body"
        given = "" if first["type"] == "missing" else f". Given: {_shown(first['input'])}"
        raise BodyMismatch(f"{path}: {first['msg']}{given}") from None


async def _read(request: Request, limit_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit_bytes:
        raise BodyTooLarge(limit_bytes)
    chunks: list[bytes] = []
    num_bytes = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        chunk = message.get("body", b"")
        num_bytes += len(chunk)
        if num_bytes > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _shown(value: object) -> str:
    try:
        text = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # nested deeper than it writes, though it reads that
        return f"a deeply nested {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
