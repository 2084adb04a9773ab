"""A token source for tests of text: token events as written down, without a replica."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence

from text_generation_router.scheduling.request import (
    Constraint,
    FinishReason,
    GenerationFailed,
    Request,
    TokenEvent,
    TokenNumbers,
)


class ScriptedSource:
    """Gives the n-th request the n-th script: pairs of token id and logprob, or a message to fail with.

    `finish_reason` comes with the last pair; None ends the events without it.
    """

    def __init__(
        self,
        *scripts: Sequence[tuple[int, float] | str],
        finish_reason: FinishReason | None = FinishReason.LENGTH,
    ) -> None:
        self._scripts = list(scripts)
        self._finish_reason = finish_reason
        self.requests: list[Request] = []
        self.num_events = 0
        self.num_closed = 0

    async def submit(self, request: Request, constraint: Constraint | None = None) -> AsyncGenerator[TokenEvent, None]:
        self.requests.append(request)
        script = self._scripts[len(self.requests) - 1]
        started_s = time.monotonic()
        try:
            for position, item in enumerate(script):
                if isinstance(item, str):
                    raise GenerationFailed(item)
                reason = self._finish_reason if position == len(script) - 1 else None
                self.num_events += 1
                yield TokenEvent(item[0], TokenNumbers(item[1]), (), reason, None, started_s)
        finally:
            self.num_closed += 1
