"""The metrics page, read by Prometheus' own parser."""

from __future__ import annotations

import math

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from text_generation_router.metrics import Histogram, Metrics
from text_generation_router.replica import StepTiming
from text_generation_router.scheduling.blocks import BlockPool
from text_generation_router.scheduling.scheduler import Scheduler, SchedulerConfig

STATS = Scheduler(SchedulerConfig(16, 4), BlockPool(8, 16)).stats()


def page(metrics: Metrics) -> dict[str, Metric]:
    text = metrics.render(STATS, max_batch_total_tokens=128).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def new_metrics() -> Metrics:
    return Metrics(max_input_tokens=1000, max_total_tokens=2000)


def test_untouched_series_do_not_appear_and_gauges_do() -> None:
    families = page(new_metrics())
    assert "tgi_request_count" not in families
    assert "tgi_request_duration" not in families
    assert families["tgi_queue_size"].samples[0].value == 0
    assert families["tgi_batch_current_size"].samples[0].value == 0
    assert families["tgi_batch_max_total_tokens"].samples[0].value == 128
    assert families["tgi_kv_blocks_free"].samples[0].value == 8


def test_counters_have_no_suffix() -> None:
    metrics = new_metrics()
    metrics.request_count.add()
    metrics.request_failure.add("validation")
    metrics.request_failure.add("validation")
    lines = metrics.render(STATS, max_batch_total_tokens=128).decode().splitlines()
    assert "tgi_request_count 1" in lines
    assert "# TYPE tgi_request_count counter" in lines
    assert 'tgi_request_failure{err="validation"} 2' in lines
    assert not [line for line in lines if "_total " in line or "_total{" in line]


def test_a_step_is_recorded_by_its_method() -> None:
    metrics = new_metrics()
    metrics.step_finished(StepTiming(True, 3, 0.5, 0.25, 0.125))
    metrics.step_finished(StepTiming(False, 4, 0.5, 0.25, 0.125))
    metrics.step_failed(is_prefill=False)
    families = page(metrics)
    counts = {sample.labels["method"]: sample.value for sample in families["tgi_batch_inference_count"].samples}
    assert counts == {"prefill": 1, "decode": 2}
    assert {sample.labels["method"] for sample in families["tgi_batch_inference_failure"].samples} == {"decode"}
    for name, total in (("inference", 0.5), ("forward", 0.25), ("decode", 0.125)):
        sums = [sample for sample in families[f"tgi_batch_{name}_duration"].samples if sample.name.endswith("_sum")]
        assert [(sample.labels["method"], sample.value) for sample in sums] == [("prefill", total), ("decode", total)]
    sizes = families["tgi_batch_next_size"].samples
    assert next(sample for sample in sizes if sample.labels.get("le") == "3").value == 1
    assert next(sample for sample in sizes if sample.labels.get("le") == "2").value == 0


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("request_duration", [0.0001 * 1.5**power for power in range(1, 36)]),
        ("request_input_length", [10.0 * index for index in range(1, 101)]),
        ("request_generated_tokens", [20.0 * index for index in range(1, 101)]),
        ("request_max_new_tokens", [20.0 * index for index in range(1, 101)]),
        ("batch_next_size", [float(size) for size in range(1, 1025)]),
    ],
)
def test_buckets(name: str, bounds: list[float]) -> None:
    metrics = new_metrics()
    histogram: Histogram = getattr(metrics, name)
    histogram.observe(1)
    buckets = [sample for sample in page(metrics)[f"tgi_{name}"].samples if sample.name.endswith("_bucket")]
    assert [float(sample.labels["le"]) for sample in buckets] == pytest.approx([*bounds, math.inf])


def test_buckets_are_inclusive_and_cumulative() -> None:
    histogram = Histogram("h", "help", (1, 2))
    for value in (1, 1.5, 2, 99):
        histogram.observe(value)
    (family,) = text_string_to_metric_families("\n".join(histogram.lines()) + "\n")
    values = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    assert values == {"1": 1, "2": 3, "+Inf": 4, "h_sum": 103.5, "h_count": 4}
