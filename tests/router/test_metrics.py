"""The metrics page, read by Prometheus' own parser."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

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


def timing(**facts: Any) -> StepTiming:
    """A decode step of four rows, with durations that add up exactly."""
    step = StepTiming(
        is_prefill=False,
        num_rows=4,
        num_admitted=0,
        joined=False,
        num_sampled=4,
        row_num_sampled=(),
        total_s=2.0,
        plan_s=0.0625,
        encode_s=0.03125,
        wire_s=0.5,
        forward_s=0.25,
        sample_s=0.125,
        complete_s=0.015625,
    )
    return replace(step, **facts)


def sums(family: Metric) -> dict[str, float]:
    """By the value of the label `method`; "" without one."""
    return {sample.labels.get("method", ""): sample.value for sample in family.samples if sample.name.endswith("_sum")}


def test_a_step_is_recorded_by_its_method() -> None:
    metrics = new_metrics()
    metrics.step_finished(timing(is_prefill=True, num_admitted=3))
    metrics.step_finished(timing())
    metrics.step_failed(is_prefill=False)
    families = page(metrics)
    counts = {sample.labels["method"]: sample.value for sample in families["tgi_batch_inference_count"].samples}
    assert counts == {"prefill": 1, "decode": 2}
    assert {sample.labels["method"] for sample in families["tgi_batch_inference_failure"].samples} == {"decode"}
    for name, total in (("inference", 2.0), ("forward", 0.25), ("decode", 0.125), ("filter", 0.015625)):
        assert sums(families[f"tgi_batch_{name}_duration"]) == {"prefill": total, "decode": total}
    sizes = families["tgi_batch_next_size"].samples
    assert next(sample for sample in sizes if sample.labels.get("le") == "3").value == 1
    assert next(sample for sample in sizes if sample.labels.get("le") == "2").value == 0
    assert "tgi_batch_concat" not in families


def test_sequences_that_join_running_ones_are_counted_as_in_tgi() -> None:
    metrics = new_metrics()
    metrics.step_finished(timing(is_prefill=True, num_admitted=1, joined=True))
    families = page(metrics)
    (sample,) = families["tgi_batch_concat"].samples
    assert (sample.labels, sample.value) == ({"reason": "chunking"}, 1)
    assert sums(families["tgi_batch_concat_duration"]) == {"decode": 0.0625 + 0.03125}


def test_a_steps_time_is_split_into_plan_wire_device_and_text() -> None:
    metrics = new_metrics()
    metrics.step_finished(timing())
    metrics.text_finished(0.75)
    families = page(metrics)
    found = {name: sums(families[f"tgi_step_{name}_duration"])[""] for name in ("plan", "wire", "device", "text")}
    assert found == {"plan": 0.0625, "wire": 0.53125, "device": 0.375, "text": 0.75}


def test_time_between_tokens_counts_every_sequence() -> None:
    metrics = new_metrics()
    metrics.tokens_delivered(0.25, 3)
    metrics.tokens_delivered(0.5, 1)
    samples = {
        sample.name + sample.labels.get("le", "")[:5]: sample.value
        for sample in page(metrics)["tgi_request_inter_token_duration"].samples
    }
    assert samples["tgi_request_inter_token_duration_count"] == 4
    assert samples["tgi_request_inter_token_duration_sum"] == 1.25


def test_nothing_is_skipped_without_speculation() -> None:
    metrics = new_metrics()
    metrics.step_finished(timing())
    family = page(metrics)["tgi_request_skipped_tokens"]
    assert family.type == "summary"
    samples = {sample.name + sample.labels.get("quantile", ""): sample.value for sample in family.samples}
    quantiles = ("0", "0.5", "0.9", "0.95", "0.99", "0.999", "1")
    assert samples == {
        **{f"tgi_request_skipped_tokens{quantile}": 0 for quantile in quantiles},
        "tgi_request_skipped_tokens_sum": 0,
        "tgi_request_skipped_tokens_count": 4,
    }


def test_tokens_won_by_guessing_are_counted_by_row_and_step() -> None:
    metrics = new_metrics()
    metrics.step_finished(timing())
    metrics.step_finished(timing(row_num_sampled=(1, 4, 1, 3)))
    family = page(metrics)["tgi_request_skipped_tokens"]
    samples = {sample.name + sample.labels.get("quantile", ""): sample.value for sample in family.samples}
    name = "tgi_request_skipped_tokens"
    assert (samples[f"{name}_sum"], samples[f"{name}_count"]) == (5, 8)
    assert (samples[f"{name}0.5"], samples[f"{name}0.9"], samples[f"{name}1"]) == (0, 3, 3)


# The contract's table: what dashboards made for TGI ask for.
TGI_METRICS = {
    "tgi_request_count": ("counter", ()),
    "tgi_request_success": ("counter", ()),
    "tgi_request_failure": ("counter", ("err",)),
    "tgi_request_duration": ("histogram", ()),
    "tgi_request_validation_duration": ("histogram", ()),
    "tgi_request_queue_duration": ("histogram", ()),
    "tgi_request_inference_duration": ("histogram", ()),
    "tgi_request_mean_time_per_token_duration": ("histogram", ()),
    "tgi_request_input_length": ("histogram", ()),
    "tgi_request_max_new_tokens": ("histogram", ()),
    "tgi_request_generated_tokens": ("histogram", ()),
    "tgi_request_skipped_tokens": ("summary", ()),
    "tgi_queue_size": ("gauge", ()),
    "tgi_batch_current_size": ("gauge", ()),
    "tgi_batch_current_max_tokens": ("gauge", ()),
    "tgi_batch_max_total_tokens": ("gauge", ()),
    "tgi_batch_next_size": ("histogram", ()),
    "tgi_batch_concat": ("counter", ("reason",)),
    "tgi_batch_inference_count": ("counter", ("method",)),
    "tgi_batch_inference_success": ("counter", ("method",)),
    "tgi_batch_inference_failure": ("counter", ("method",)),
    "tgi_batch_inference_duration": ("histogram", ("method",)),
    "tgi_batch_forward_duration": ("histogram", ("method",)),
    "tgi_batch_decode_duration": ("histogram", ("method",)),
    "tgi_batch_filter_duration": ("histogram", ("method",)),
    "tgi_batch_concat_duration": ("histogram", ("method",)),
}


def test_every_metric_of_tgi_is_there_with_its_type_and_labels() -> None:
    metrics = new_metrics()
    metrics.step_finished(timing(is_prefill=True, num_admitted=1, joined=True))
    metrics.step_failed(is_prefill=True)
    metrics.request_failure.add("validation")
    for name in ("count", "success"):
        getattr(metrics, f"request_{name}").add()
    for name, (kind, labels) in TGI_METRICS.items():
        if kind == "histogram" and not labels and name != "tgi_batch_next_size":
            getattr(metrics, name.removeprefix("tgi_")).observe(1)
    families = page(metrics)
    for name, (kind, labels) in TGI_METRICS.items():
        assert families[name].type == kind, name
        assert {label for sample in families[name].samples for label in sample.labels} - {"le", "quantile"} == set(
            labels
        ), name


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("request_duration", [0.0001 * 1.5**power for power in range(1, 36)]),
        ("request_input_length", [10.0 * index for index in range(1, 101)]),
        ("request_generated_tokens", [20.0 * index for index in range(1, 101)]),
        ("request_max_new_tokens", [20.0 * index for index in range(1, 101)]),
        ("request_inter_token_duration", [0.0001 * 1.5**power for power in range(1, 36)]),
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
