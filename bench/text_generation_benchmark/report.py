"""Results as the Markdown tables that TGI's tool ends with, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

from text_generation_benchmark.results import Results, Series
from text_generation_benchmark.settings import BenchmarkSettings
from text_generation_benchmark.summary import HEADINGS, summarize

_Rows = tuple[tuple[str, Callable[[Series], Sequence[float]]], ...]

LATENCIES: _Rows = (
    ("Prefill", lambda series: series.prefill_ms),
    ("Decode (token)", lambda series: series.token_ms),
    ("Decode (total)", lambda series: series.decode_ms),
)
RATES: _Rows = (
    ("Prefill", lambda series: series.prefill_rate),
    ("Decode", lambda series: series.decode_rate),
)


def markdown(results: Results) -> str:
    """Three tables: the parameters, the latencies, the throughputs. Batch sizes without a run have no rows."""
    heads = ("Step", "Batch Size", *HEADINGS.values())
    tables = [_table(("Parameter", "Value"), _parameters(results))]
    if results.measured:
        tables.append(_table(heads, _statistics(results, LATENCIES, "ms")))
        tables.append(_table(heads, _statistics(results, RATES, "tokens/secs")))
    return "\n\n".join(tables) + "\n"


def _statistics(results: Results, rows: _Rows, unit: str) -> Iterable[Sequence[str]]:
    for name, values_of in rows:
        for batch_size in results.measured:
            summary = asdict(summarize(values_of(results.series(batch_size))))
            yield name, str(batch_size), *(f"{summary[field]:.2f} {unit}" for field in HEADINGS)


def _parameters(results: Results) -> Iterable[tuple[str, str]]:
    settings, facts = results.settings, results.facts
    yield "Model", shown_model(results)
    yield "Sequence Length", str(settings.sequence_length)
    yield "Decode Length", str(settings.decode_length)
    yield "Top N Tokens", str(settings.top_n_tokens)
    yield "N Runs", str(settings.runs)
    yield "Warmups", str(settings.warmups)
    yield "Temperature", str(settings.temperature)
    yield "Top K", str(settings.top_k)
    yield "Top P", str(settings.top_p)
    yield "Typical P", str(settings.typical_p)
    yield "Repetition Penalty", str(settings.repetition_penalty)
    yield "Frequency Penalty", str(settings.frequency_penalty)
    yield "Watermark", str(settings.watermark)
    yield "Do Sample", str(settings.do_sample)
    yield "Pipeline Depth", str(settings.pipeline_depth)
    if facts is not None:
        yield "Device", facts.device
        yield "Dtype", facts.dtype
        yield "Shards", str(facts.num_shards)
        yield "Server Version", facts.server_version
    if results.num_runs < results.max_runs:
        yield "Incomplete", f"{results.num_runs} of {results.max_runs} runs"


def shown_model(results: Results) -> str:
    if results.facts is not None:
        return results.facts.model_id
    return results.settings.tokenizer_name or "unknown"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Padded, so that it reads well in a terminal too."""
    lines = [heads, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    padded = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([padded[0], rule, *padded[1:]])


def as_json(results: Results) -> str:
    """Parameters, facts, every run, and the numbers of the tables. Times in milliseconds, rates in tokens a second."""
    batches = []
    for batch_size in results.measured:
        series = results.series(batch_size)
        batches.append(
            {
                "batch_size": batch_size,
                "runs": [
                    {"prefill_ms": run.prefill_s * 1e3, "step_ms": [seconds * 1e3 for seconds in run.step_s]}
                    for run in results.runs[batch_size]
                ],
                **{name: asdict(summarize(values)) for name, values in asdict(series).items()},
            }
        )
    document = {
        "parameters": _json_settings(results.settings),
        "shard": None if results.facts is None else asdict(results.facts),
        "is_complete": results.is_done,
        "error": results.error,
        "batches": batches,
    }
    return json.dumps(document, indent=2) + "\n"


def _json_settings(settings: BenchmarkSettings) -> dict[str, object]:
    shown = asdict(settings)
    return {name: value for name, value in shown.items() if name not in {"tui", "output_json"}}
