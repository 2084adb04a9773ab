"""Six numbers that stand for many: average, lowest, highest and three percentiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    average: float
    lowest: float
    highest: float
    p50: float
    p90: float
    p99: float


# Field of Summary -> heading, in the order of TGI's tables.
HEADINGS = {"average": "Average", "lowest": "Lowest", "highest": "Highest", "p50": "p50", "p90": "p90", "p99": "p99"}


def summarize(values: Iterable[float]) -> Summary:
    """Of at least one value, in any order."""
    ordered = sorted(values)
    return Summary(
        average=sum(ordered) / len(ordered),
        lowest=ordered[0],
        highest=ordered[-1],
        p50=_percentile(ordered, 50),
        p90=_percentile(ordered, 90),
        p99=_percentile(ordered, 99),
    )


def _percentile(ordered: Sequence[float], percent: float) -> float:
    """Between the two nearest values in proportion to the distance, as numpy does."""
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
