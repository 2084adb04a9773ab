"""What is said of a request to whoever traces it. Knows neither the collector nor HTTP: see `otlp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Protocol


class RequestTrace(Protocol):
    """One HTTP request, while it is being answered."""

    def add_sequence(self, spans: Sequence[tuple[str, float, float]], facts: Mapping[str, str | int | None]) -> None:
        """A sequence has ended.

        Args:
            spans: what it went through, each with its begin and end as moments of time.monotonic().
            facts: numbers and words, never text of the prompt or the answer.
        """

    def fail(self, error_type: str) -> None:
        """The request ends without its answer."""


# Of the request that the current task serves; None: nobody traces it.
current_trace: ContextVar[RequestTrace | None] = ContextVar("current_trace", default=None)
