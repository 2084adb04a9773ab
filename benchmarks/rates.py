"""What a run of concurrent streams says about speed: pure arithmetic on arrival times.

Knows nothing about HTTP or models, so that the server and its peers are measured by the same sums.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from statistics import median


@dataclass(frozen=True)
class Run:
    """When each stream was sent, and when each of its tokens arrived; seconds on one clock of any origin.

    Streams that failed are not among them: `errors` has their reasons.
    """

    sent_s: list[float]
    arrivals_s: list[list[float]]
    texts: list[str] = field(default_factory=list)  # of each stream, where the client saw text
    token_ids: list[list[int]] = field(default_factory=list)  # of each stream, where it saw ids
    errors: list[str] = field(default_factory=list)

    @classmethod
    def from_json(cls, text: str | bytes) -> Run:
        return cls(**json.loads(text))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def num_tokens(self) -> int:
        return sum(len(arrivals) for arrivals in self.arrivals_s)

    def decode_window(self) -> tuple[float, float] | None:
        """From when the last stream had its first token until one ended. None if there is no such time.

        Nothing but decode happens in it.
        """
        if not self.arrivals_s:
            return None
        start_s = max(arrivals[0] for arrivals in self.arrivals_s)
        end_s = min(arrivals[-1] for arrivals in self.arrivals_s)
        return (start_s, end_s) if end_s > start_s else None

    def decode_rate(self) -> float | None:
        """Tokens per second of all streams together in the decode window; None without one."""
        window = self.decode_window()
        if window is None:
            return None
        start_s, end_s = window
        return sum(start_s < at <= end_s for arrivals in self.arrivals_s for at in arrivals) / (end_s - start_s)

    def total_rate(self) -> float:
        """Tokens per second from the first request to the last token, prompts included in the time."""
        return self.num_tokens / (max(arrivals[-1] for arrivals in self.arrivals_s) - min(self.sent_s))

    def first_token_times_s(self) -> list[float]:
        """Of each stream, the time to its first token."""
        return [arrivals[0] - sent for sent, arrivals in zip(self.sent_s, self.arrivals_s, strict=True)]

    def first_token_s(self) -> float:
        """Median over the streams of the time to their first token."""
        return median(self.first_token_times_s())

    def inter_token_times_s(self) -> list[float]:
        """Times between one token of a stream and its next, of all streams."""
        return [later - earlier for arrivals in self.arrivals_s for earlier, later in pairwise(arrivals)]


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of the values do not exceed, between two of them by their distance. NaN for none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def poisson_schedule(rate: float, count: int, seed: int) -> list[float]:
    """When `count` requests come that do not know of each other, `rate` a second on average: seconds from the start."""
    generator = random.Random(seed)
    return list(accumulate(generator.expovariate(rate) for _ in range(count)))


def spread(arrivals_s: Sequence[float], num_tokens: int) -> list[float]:
    """The arrival of each of `num_tokens` tokens that came in these events, as evenly spread over them as can be.

    A server that is behind puts several tokens into one event; one that waits for the rest of a character sends none.
    """
    if not arrivals_s:
        return []
    return [arrivals_s[index * len(arrivals_s) // num_tokens] for index in range(num_tokens)]
