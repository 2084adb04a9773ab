"""What has been measured so far, and how far the measuring has got: fed by events, read by whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from text_generation_benchmark.events import Done, Event, Facts, Failed, Progress, Run, Stage
from text_generation_benchmark.settings import BenchmarkSettings


@dataclass(frozen=True, slots=True)
class Series:
    """The numbers of one batch size. Milliseconds, and tokens a second of all its sequences together."""

    prefill_ms: tuple[float, ...]  # one a run
    decode_ms: tuple[float, ...]  # one a run: all decode steps
    token_ms: tuple[float, ...]  # one a decode step, of all runs
    prefill_rate: tuple[float, ...]  # one a run
    decode_rate: tuple[float, ...]  # one a run


@dataclass
class Results:
    settings: BenchmarkSettings
    facts: Facts | None = None
    stage: str = "Starting"  # what goes on, in words
    progress: Progress | None = None
    error: str | None = None
    is_done: bool = False
    runs: dict[int, list[Run]] = field(default_factory=dict)  # by batch size

    def apply(self, event: Event) -> None:
        if isinstance(event, Facts):
            self.facts = event
        elif isinstance(event, Stage):
            self.stage, self.progress = event.text, None
        elif isinstance(event, Progress):
            self.progress = event
            run = (
                f"warm-up {event.run} of {self.settings.warmups}"
                if event.is_warmup
                else f"run {event.run} of {self.settings.runs}"
            )
            self.stage = f"Batch size {event.batch_size}: {run}"
        elif isinstance(event, Run):
            self.runs.setdefault(event.batch_size, []).append(event)
            self.progress = None
        elif isinstance(event, Failed):
            self.error = event.message
        else:
            assert isinstance(event, Done)
            self.is_done = True

    @property
    def has_ended(self) -> bool:
        return self.is_done or self.error is not None

    @property
    def num_runs(self) -> int:
        """Measured so far."""
        return sum(len(runs) for runs in self.runs.values())

    @property
    def max_runs(self) -> int:
        return self.settings.runs * len(self.settings.batch_sizes)

    @property
    def measured(self) -> tuple[int, ...]:
        """Batch sizes that have at least one run."""
        return tuple(size for size in self.settings.batch_sizes if self.runs.get(size))

    @property
    def current(self) -> int:
        """The batch size that is being measured, or was last."""
        if self.progress is not None:
            return self.progress.batch_size
        return self.measured[-1] if self.measured else self.settings.batch_sizes[0]

    def fraction(self, batch_size: int) -> float:
        """How much of a batch size is measured, the run under way included."""
        done = float(len(self.runs.get(batch_size, ())))
        progress = self.progress
        if progress is not None and not progress.is_warmup and progress.batch_size == batch_size:
            done += progress.fraction
        return done / self.settings.runs

    def total_fraction(self) -> float:
        sizes = self.settings.batch_sizes
        return sum(self.fraction(size) for size in sizes) / len(sizes)

    def series(self, batch_size: int) -> Series:
        """Of a batch size that has been measured."""
        runs = self.runs[batch_size]
        prompt_tokens = batch_size * self.settings.sequence_length
        return Series(
            prefill_ms=tuple(run.prefill_s * 1e3 for run in runs),
            decode_ms=tuple(run.decode_s * 1e3 for run in runs),
            token_ms=tuple(seconds * 1e3 for run in runs for seconds in run.step_s),
            prefill_rate=tuple(prompt_tokens / run.prefill_s for run in runs),
            decode_rate=tuple(batch_size * len(run.step_s) / run.decode_s for run in runs),
        )
