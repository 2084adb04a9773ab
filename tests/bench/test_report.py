"""Tables and JSON of runs whose numbers are known."""

from __future__ import annotations

import json

import pytest

from text_generation_benchmark.events import Done, Event, Facts, Failed, Progress, Run, Stage, from_line, to_line
from text_generation_benchmark.report import as_json, markdown
from text_generation_benchmark.results import Results
from text_generation_benchmark.settings import BenchmarkSettings

FACTS = Facts("models/tiny", "0.1.0", "Ascend|910B4", "bfloat16", 2)
# Two prompts of 10 tokens in 20 ms: 1000 tokens/s. Two times two tokens in 10 ms: 400; in 30 ms: 133.
RUNS = (Run(2, 0.020, (0.004, 0.006)), Run(2, 0.040, (0.010, 0.020)))


@pytest.fixture
def results() -> Results:
    results = Results(BenchmarkSettings(batch_size=(2, 4), runs=2, decode_length=3, temperature=0.5))
    for event in (FACTS, Stage("warming up"), *RUNS):
        results.apply(event)
    return results


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line]


def test_tables_have_tgis_heads_and_the_numbers_of_the_runs(results: Results) -> None:
    parameters, latencies, rates = (rows(table) for table in markdown(results).split("\n\n"))
    assert parameters[0] == ["Parameter", "Value"]
    assert {"Model", "Sequence Length", "Decode Length", "Top N Tokens", "N Runs", "Warmups"} <= {
        row[0] for row in parameters
    }
    assert ["Temperature", "0.5"] in parameters
    assert ["Top K", "None"] in parameters
    assert latencies[0] == ["Step", "Batch Size", "Average", "Lowest", "Highest", "p50", "p90", "p99"]
    assert latencies[2] == ["Prefill", "2", "30.00 ms", "20.00 ms", "40.00 ms", "30.00 ms", "38.00 ms", "39.80 ms"]
    assert latencies[3][:5] == ["Decode (token)", "2", "10.00 ms", "4.00 ms", "20.00 ms"]
    assert latencies[4][:5] == ["Decode (total)", "2", "20.00 ms", "10.00 ms", "30.00 ms"]
    assert rates[2][:5] == ["Prefill", "2", "750.00 tokens/secs", "500.00 tokens/secs", "1000.00 tokens/secs"]
    assert rates[3][:5] == ["Decode", "2", "266.67 tokens/secs", "133.33 tokens/secs", "400.00 tokens/secs"]


def test_tables_say_that_runs_are_missing(results: Results) -> None:
    assert "| Incomplete " in markdown(results)
    assert "2 of 4 runs" in markdown(results)
    for run in RUNS:
        results.apply(Run(4, run.prefill_s, run.step_s))
    assert "Incomplete" not in markdown(results)


def test_bar_in_a_name_does_not_split_a_cell(results: Results) -> None:
    assert "Ascend\\|910B4" in markdown(results)


def test_json_has_every_run_and_the_numbers_of_the_tables(results: Results) -> None:
    document = json.loads(as_json(results))
    (batch,) = document["batches"]
    assert batch["runs"][1] == {"prefill_ms": pytest.approx(40.0), "step_ms": pytest.approx([10.0, 20.0])}
    assert batch["token_ms"]["average"] == pytest.approx(10.0)
    assert batch["decode_rate"]["highest"] == pytest.approx(400.0)
    assert document["shard"]["num_shards"] == 2
    assert document["parameters"]["temperature"] == 0.5
    assert not document["is_complete"]


def test_fraction_counts_the_run_under_way_but_no_warm_up(results: Results) -> None:
    assert (results.fraction(2), results.fraction(4), results.total_fraction()) == (1.0, 0.0, 0.5)
    results.apply(Progress(4, 1, True, 0.5))
    assert (results.current, results.fraction(4)) == (4, 0.0)
    assert results.stage == "Batch size 4: warm-up 1 of 1"
    results.apply(Progress(4, 1, False, 0.5))
    assert (results.fraction(4), results.total_fraction()) == (0.25, 0.625)
    assert results.stage == "Batch size 4: run 1 of 2"


@pytest.mark.parametrize(
    "event",
    [FACTS, Stage("x"), Progress(1, 2, False, 0.25), *RUNS, Failed("why"), Done()],
    ids=lambda event: event.kind,
)
def test_event_survives_its_pipe(event: Event) -> None:
    assert from_line(to_line(event)) == event


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"kind": "other"}', "Traceback"])
def test_line_that_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not an event"):
        from_line(line)
