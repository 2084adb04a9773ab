"""Work that ends when the client hangs up. ASGI servers do not cancel a handler by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientDisconnected(Exception):
    """Nobody waits for the answer any more."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; cancel it, and wait until it has cleaned up, if the client hangs up first.

    Args:
        receive: the request's, after its body was read.
    Raises: ClientDisconnected, and whatever `work` raises.
    """
    task = asyncio.ensure_future(work)
    hang_up = asyncio.ensure_future(_hang_up(receive))
    try:
        await asyncio.wait({task, hang_up}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnected
    finally:
        task.cancel()
        hang_up.cancel()
        await asyncio.gather(task, hang_up, return_exceptions=True)


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
