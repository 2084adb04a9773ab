"""Lets a test call functions in a client's environment: one JSON object a line in, one out, in order.

In: {"operation": name, "arguments": {...}}. Out: {"result": ...}, or {"error": "module.Class", "message": ...} for
what the client raised. Runs with the client's interpreter, so it imports nothing but the standard library.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from itertools import islice
from typing import Any, TypeVar

Piece = TypeVar("Piece")


def serve(*operations: Callable[..., Any]) -> None:
    """Answer calls of these functions, by name, until standard input ends.

    Arguments are passed by name; results must be JSON.
    """
    named = {operation.__name__: operation for operation in operations}
    replies = sys.stdout
    sys.stdout = sys.stderr  # what a library prints is not a reply
    for line in sys.stdin:
        call = json.loads(line)
        reply: dict[str, Any]
        try:
            reply = {"result": named[call["operation"]](**call["arguments"])}
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__module__}.{type(error).__qualname__}", "message": _message(error)}
        print(json.dumps(reply), file=replies, flush=True)


def _message(error: Exception) -> str:
    """openai's text of an error is its status, unless the body is made as OpenAI's are: then see the body."""
    body = getattr(error, "body", None)
    return str(error) if body is None else f"{error}: {body}"


def taken(pieces: Iterable[Piece], read: int | None) -> list[Piece]:
    """The first `read` pieces, after which nobody holds the stream; None: all of them."""
    return list(islice(pieces, read))


async def taken_when_there(pieces: Awaitable[AsyncIterable[Piece]], read: int | None) -> list[Piece]:
    """The same of a stream that has to be waited for."""
    return await taken_async(await pieces, read)


async def taken_async(pieces: AsyncIterable[Piece], read: int | None) -> list[Piece]:
    found: list[Piece] = []
    async for piece in pieces:
        found.append(piece)
        if len(found) == read:
            break
    return found
