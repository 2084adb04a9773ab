"""Rounds over all contenders, interleaved, within a time budget.

In a round every contender does one thing after the other: a slow minute of a shared machine slows all of them. The
others are frozen meanwhile.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.programs import Server, Worker
from benchmarks.prompts import Prompt, PromptSource
from benchmarks.rates import Run
from benchmarks.streams import LoadError


@dataclass(frozen=True)
class Work:
    """One column's runs: so many streams at once, each of a prompt of so many tokens, for so many new ones."""

    name: str
    num_streams: int
    prompt_tokens: int
    new_tokens: int


@dataclass
class Results:
    """Runs by contender and work. A contender that failed keeps what it had until then."""

    runs: dict[tuple[str, str], list[Run]] = field(default_factory=lambda: defaultdict(list))
    failures: dict[str, str] = field(default_factory=dict)

    def median_of(self, contender: str, work: str, value: Callable[[Run], float | None]) -> float | None:
        values = [found for run in self.runs.get((contender, work), ()) if (found := value(run)) is not None]
        return median(values) if values else None


def measure(
    running: Mapping[str, Server | Worker],
    works: Sequence[Work],
    prompts: PromptSource,
    max_rounds: int,
    budget_s: float,
) -> Results:
    """All contenders are frozen when this begins and when it ends. Says on stderr what it does.

    A run is made only if one as long as its last fits into the budget. Who is slow is not measured closely: no second
    run after one that took a tenth of the budget, and none at all that would take a quarter of it if it grew with the
    number of streams.
    """
    results = Results()
    took_s: dict[tuple[str, str], float] = {}
    by_stream_s: dict[str, float] = {}  # the last run's time divided by its streams
    started_s = time.perf_counter()
    for number in range(1, max_rounds + 1):
        for work in works:
            batch = prompts.take(work.num_streams, work.prompt_tokens)
            for name, contender in running.items():
                if name in results.failures:
                    continue
                last_s = took_s.get((name, work.name), 0.0)
                spent_s = time.perf_counter() - started_s
                grown_s = by_stream_s.get(name, 0.0) * work.num_streams if number == 1 else 0.0
                if spent_s + last_s > budget_s or last_s > budget_s / 10 or grown_s > budget_s / 4:
                    continue
                run = _thawed(name, contender, batch, work.new_tokens, results)
                if run is not None:
                    took_s[name, work.name] = time.perf_counter() - started_s - spent_s
                    by_stream_s[name] = took_s[name, work.name] / work.num_streams
                    results.runs[name, work.name].append(run)
                    print(f"round {number}: {name}, {work.name}: {took_s[name, work.name]:.1f} s", file=sys.stderr)
    return results


def warm_up(running: Mapping[str, Server | Worker], prompts: PromptSource, prompt_tokens: int) -> Results:
    """One prompt as long as any, so that nobody's first run pays for what is done only once. Leaves all frozen."""
    results = Results()
    for name, contender in running.items():
        _thawed(name, contender, prompts.take(1, prompt_tokens), 8, results)
    return results


def _thawed(
    name: str, contender: Server | Worker, prompts: Sequence[Prompt], new_tokens: int, results: Results
) -> Run | None:
    contender.program.thaw()
    try:
        return contender.run(prompts, new_tokens)
    except LoadError as error:
        results.failures[name] = str(error).strip()
        print(f"{name} failed: {error}", file=sys.stderr)
        return None
    finally:
        contender.program.freeze()
