"""Progress where nobody watches a screen: one line a stage and one a run."""

from __future__ import annotations

from collections.abc import Callable

from text_generation_benchmark.events import Event, Facts, Run, Stage
from text_generation_benchmark.measurement import Measurement
from text_generation_benchmark.results import Results


async def follow(measurement: Measurement, results: Results, write: Callable[[str], None]) -> None:
    """Until the last event. `write` gets one line, without its end."""
    async for event in measurement.events():
        results.apply(event)
        line = _line(event, results)
        if line is not None:
            write(line)
        if isinstance(event, Run):
            measurement.shown()


def _line(event: Event, results: Results) -> str | None:
    if isinstance(event, Facts):
        return f"{event.model_id}: {event.dtype} on {event.device}, {event.num_shards} shard(s)"
    if isinstance(event, Stage):
        return f"{event.text} ..."
    if isinstance(event, Run):
        settings = results.settings
        return (
            f"batch size {event.batch_size}, run {len(results.runs[event.batch_size])} of {settings.runs}: "
            f"prefill {event.prefill_s * 1e3:.2f} ms, decode {event.decode_s * 1e3:.2f} ms "
            f"({event.decode_s * 1e3 / len(event.step_s):.2f} ms a token)"
        )
    return None
