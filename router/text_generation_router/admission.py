"""How many sequences may be held at once, and whether new ones are still taken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from text_generation_router.errors import Overloaded, ShuttingDown


class Gate:
    def __init__(self, max_concurrent_requests: int) -> None:
        self._max = max_concurrent_requests
        self._num_inside = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_closed = False

    @contextmanager
    def enter(self, num_sequences: int = 1) -> Iterator[None]:
        """Hold so many places until the block is left. Never waits: raises Overloaded or ShuttingDown."""
        self.check_open()
        if self._num_inside + num_sequences > self._max:
            raise Overloaded
        self._num_inside += num_sequences
        self._idle.clear()
        try:
            yield
        finally:
            self._num_inside -= num_sequences
            if not self._num_inside:
                self._idle.set()

    def check_open(self) -> None:
        """Raises ShuttingDown."""
        if self.is_closed:
            raise ShuttingDown

    def close(self) -> None:
        """Take nobody new; who is inside goes on."""
        self.is_closed = True

    async def wait_idle(self) -> None:
        """Return when nobody is inside."""
        await self._idle.wait()
