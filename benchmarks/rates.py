"""What a run of concurrent streams says about speed: pure arithmetic on arrival times.

Knows nothing about HTTP or models, so that the server and its peers are measured by the same sums.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from statistics import median


@dataclass(frozen=True)
class Run:
    """When each stream was sent, and when each of its tokens arrived; seconds on one clock of any origin."""

    sent_s: list[float]
    arrivals_s: list[list[float]]

    @classmethod
    def from_json(cls, text: str | bytes) -> Run:
        fields = json.loads(text)
        return cls(fields["sent_s"], fields["arrivals_s"])

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def num_tokens(self) -> int:
        return sum(len(arrivals) for arrivals in self.arrivals_s)

    def decode_rate(self) -> float | None:
        """Tokens per second of all streams together, from when the last of them had its first token until one ended.

        Nothing but decode happens in that time. None if there is no such time.
        """
        start_s = max(arrivals[0] for arrivals in self.arrivals_s)
        end_s = min(arrivals[-1] for arrivals in self.arrivals_s)
        if end_s <= start_s:
            return None
        return sum(start_s < at <= end_s for arrivals in self.arrivals_s for at in arrivals) / (end_s - start_s)

    def total_rate(self) -> float:
        """Tokens per second from the first request to the last token, prompts included in the time."""
        return self.num_tokens / (max(arrivals[-1] for arrivals in self.arrivals_s) - min(self.sent_s))

    def first_token_s(self) -> float:
        """Median over the streams of the time to their first token."""
        return median(arrivals[0] - sent for sent, arrivals in zip(self.sent_s, self.arrivals_s, strict=True))
