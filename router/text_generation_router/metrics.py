"""Counts and durations under TGI's names, in Prometheus' text form.

The exposition is written here because `prometheus_client` appends `_total` to the name of every counter, and existing
dashboards ask for names without it. A series appears when it is first touched. Belongs to one event loop: no locks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from text_generation_router.replica import StepTiming
from text_generation_router.scheduling.scheduler import SchedulerStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_DURATION_BOUNDS_S = tuple(0.0001 * 1.5**power for power in range(1, 36))


class Counter:
    def __init__(self, name: str, help: str, label: str = "") -> None:
        self.name, self._help, self._label = name, help, label
        self._values: dict[str, int] = {}  # by label value; "" where there is no label

    def add(self, label_value: str = "", amount: int = 1) -> None:
        self._values[label_value] = self._values.get(label_value, 0) + amount

    def lines(self) -> Iterator[str]:
        if self._values:
            yield from _heading(self.name, self._help, "counter")
        for label_value, value in self._values.items():
            yield f"{self.name}{_labels(self._label, label_value)} {value}"


class Histogram:
    def __init__(self, name: str, help: str, bounds: Sequence[float], label: str = "") -> None:
        """`bounds` are inclusive and ascending; +Inf is added."""
        self.name, self._help, self._label = name, help, label
        self._bounds = tuple(bounds)
        self._counts: dict[str, list[int]] = {}  # by label value, one count a bucket, not cumulative
        self._sums: dict[str, float] = {}

    def observe(self, value: float, label_value: str = "", times: int = 1) -> None:
        counts = self._counts.get(label_value)
        if counts is None:
            counts = self._counts[label_value] = [0] * (len(self._bounds) + 1)
            self._sums[label_value] = 0.0
        counts[bisect_left(self._bounds, value)] += times
        self._sums[label_value] += value * times

    def lines(self) -> Iterator[str]:
        if self._counts:
            yield from _heading(self.name, self._help, "histogram")
        for label_value, counts in self._counts.items():
            total = 0
            for bound, count in zip((*map(repr, self._bounds), "+Inf"), counts, strict=True):
                total += count
                yield f"{self.name}_bucket{_labels(self._label, label_value, ('le', bound))} {total}"
            labels = _labels(self._label, label_value)
            yield f"{self.name}_sum{labels} {self._sums[label_value]!r}"
            yield f"{self.name}_count{labels} {total}"


class _CountedSummary:
    """Quantiles of small whole numbers, exact over all that was ever observed: each number's count is kept."""

    def __init__(self, name: str, help: str) -> None:
        self._name, self._help = name, help
        self._counts: dict[int, int] = {}

    def observe(self, value: int, times: int = 1) -> None:
        self._counts[value] = self._counts.get(value, 0) + times

    def lines(self) -> Iterator[str]:
        if not self._counts:
            return
        yield from _heading(self._name, self._help, "summary")
        values = sorted(self._counts)
        ranks = list(accumulate(self._counts[value] for value in values))  # how many are at most each value
        for quantile in ("0", "0.5", "0.9", "0.95", "0.99", "0.999", "1"):
            value = values[bisect_left(ranks, float(quantile) * ranks[-1])]
            yield f'{self._name}{{quantile="{quantile}"}} {value}'
        yield f"{self._name}_sum {sum(value * count for value, count in self._counts.items())}"
        yield f"{self._name}_count {ranks[-1]}"


class Metrics:
    """Everything that /metrics shows of requests and steps; gauges come from the replica when they are asked for."""

    def __init__(self, *, max_input_tokens: int, max_total_tokens: int) -> None:
        self._counters: list[Counter] = []
        self._histograms: list[Histogram] = []
        counter, seconds, amount = self._counter, self._seconds, self._amount

        self.request_count = counter("tgi_request_count", "Requests started")
        self.request_success = counter("tgi_request_success", "Sequences finished")
        self.request_failure = counter("tgi_request_failure", "Requests that failed", "err")
        self.request_duration = seconds("tgi_request_duration", "Whole request")
        self.request_validation_duration = seconds("tgi_request_validation_duration", "Arrival to queue")
        self.request_queue_duration = seconds("tgi_request_queue_duration", "Queue to first step")
        self.request_inference_duration = seconds("tgi_request_inference_duration", "First step to last token")
        self.request_mean_time_per_token_duration = seconds(
            "tgi_request_mean_time_per_token_duration", "Inference by generated tokens"
        )
        self.request_time_to_first_token_duration = seconds(
            "tgi_request_time_to_first_token_duration", "Arrival to first token"
        )
        input_bounds, total_bounds = _hundredths(max_input_tokens), _hundredths(max_total_tokens)
        self.request_input_length = amount("tgi_request_input_length", "Prompt tokens", input_bounds)
        self.request_max_new_tokens = amount("tgi_request_max_new_tokens", "Most tokens to generate", total_bounds)
        self.request_generated_tokens = amount("tgi_request_generated_tokens", "Generated tokens", total_bounds)

        self.request_inter_token_duration = seconds("tgi_request_inter_token_duration", "A token to the next one")

        self.batch_next_size = amount("tgi_batch_next_size", "Sequences that entered with one step", range(1, 1025))
        self.batch_concat = counter("tgi_batch_concat", "Steps by which sequences joined running ones", "reason")
        self.batch_inference_count = counter("tgi_batch_inference_count", "Steps sent to the shards", "method")
        self.batch_inference_success = counter("tgi_batch_inference_success", "Steps answered", "method")
        self.batch_inference_failure = counter("tgi_batch_inference_failure", "Steps failed", "method")
        self.batch_inference_duration = seconds("tgi_batch_inference_duration", "Step, planned to answered", "method")
        self.batch_forward_duration = seconds("tgi_batch_forward_duration", "Step, inside the model", "method")
        self.batch_decode_duration = seconds("tgi_batch_decode_duration", "Step, inside sampling", "method")
        self.batch_filter_duration = seconds(
            "tgi_batch_filter_duration", "Step, taking tokens in and ended sequences out", "method"
        )
        self.batch_concat_duration = seconds(
            "tgi_batch_concat_duration", "Planning and sending a step by which sequences joined running ones", "method"
        )
        # Where a step's time goes; the four overlap when steps are sent ahead.
        self.step_plan_duration = seconds("tgi_step_plan_duration", "Step, choosing rows and blocks")
        self.step_wire_duration = seconds("tgi_step_wire_duration", "Step, between router and shards")
        self.step_device_duration = seconds("tgi_step_device_duration", "Step, inside model and sampling")
        self.step_text_duration = seconds("tgi_step_text_duration", "Step, making text and events of its tokens")
        self._skipped_tokens = _CountedSummary("tgi_request_skipped_tokens", "Tokens won by guessing ahead, a step")

    def step_finished(self, timing: StepTiming) -> None:
        """For `Replica.observer`, as the next three."""
        method = "prefill" if timing.is_prefill else "decode"
        self.batch_inference_count.add(method)
        self.batch_inference_success.add(method)
        self.batch_inference_duration.observe(timing.total_s, method)
        self.batch_forward_duration.observe(timing.forward_s, method)
        self.batch_decode_duration.observe(timing.sample_s, method)
        self.batch_filter_duration.observe(timing.complete_s, method)
        if timing.num_admitted:
            self.batch_next_size.observe(timing.num_admitted)
        if timing.joined:
            # TGI's word for what always happens here: prompts share a step's budget with running sequences.
            self.batch_concat.add("chunking")
            self.batch_concat_duration.observe(timing.plan_s + timing.encode_s, "decode")
        self.step_plan_duration.observe(timing.plan_s)
        self.step_wire_duration.observe(timing.encode_s + timing.wire_s)
        self.step_device_duration.observe(timing.forward_s + timing.sample_s)
        if timing.row_num_sampled:
            for num_tokens in timing.row_num_sampled:
                self._skipped_tokens.observe(num_tokens - 1)
        elif timing.num_sampled:
            self._skipped_tokens.observe(0, times=timing.num_sampled)

    def step_failed(self, *, is_prefill: bool) -> None:
        method = "prefill" if is_prefill else "decode"
        self.batch_inference_count.add(method)
        self.batch_inference_failure.add(method)

    def tokens_delivered(self, gap_s: float, count: int) -> None:
        self.request_inter_token_duration.observe(gap_s, times=count)

    def text_finished(self, duration_s: float) -> None:
        self.step_text_duration.observe(duration_s)

    def render(self, stats: SchedulerStats, *, max_batch_total_tokens: int) -> bytes:
        """The page of /metrics."""
        lines: list[str] = []
        for counter in self._counters:
            lines.extend(counter.lines())
        for histogram in self._histograms:
            lines.extend(histogram.lines())
        lines.extend(self._skipped_tokens.lines())
        lines.extend(_stats_lines(stats, max_batch_total_tokens))
        return ("\n".join(lines) + "\n").encode()

    def _counter(self, name: str, help: str, label: str = "") -> Counter:
        self._counters.append(Counter(name, help, label))
        return self._counters[-1]

    def _seconds(self, name: str, help: str, label: str = "") -> Histogram:
        return self._amount(name, f"{help}, in seconds", _DURATION_BOUNDS_S, label)

    def _amount(self, name: str, help: str, bounds: Sequence[float], label: str = "") -> Histogram:
        self._histograms.append(Histogram(name, help, bounds, label))
        return self._histograms[-1]


def _stats_lines(stats: SchedulerStats, max_batch_total_tokens: int) -> Iterator[str]:
    for name, help, kind, value in (
        ("tgi_queue_size", "Sequences waiting", "gauge", stats.waiting),
        ("tgi_batch_current_size", "Sequences running", "gauge", stats.running),
        ("tgi_batch_current_max_tokens", "Most tokens of running sequences", "gauge", stats.running_max_tokens),
        ("tgi_batch_max_total_tokens", "Tokens that the KV cache holds", "gauge", max_batch_total_tokens),
        ("tgi_kv_blocks", "Blocks of the KV cache", "gauge", stats.blocks.total),
        ("tgi_kv_blocks_used", "Blocks of running sequences", "gauge", stats.blocks.owned),
        ("tgi_kv_blocks_free", "Blocks that hold nothing", "gauge", stats.blocks.free),
        ("tgi_kv_blocks_cached", "Blocks kept for prompts that begin alike", "gauge", stats.blocks.cached),
        ("tgi_prefix_cache_hit_tokens", "Prompt tokens found in the cache", "counter", stats.prefix_hit_tokens),
        ("tgi_guessed_tokens", "Tokens guessed ahead", "counter", stats.guessed_tokens),
        ("tgi_guessed_right_tokens", "Tokens guessed ahead and right", "counter", stats.guessed_right_tokens),
        ("tgi_logits_faults", "Sequences ended by logits that were no numbers", "counter", stats.logits_faults),
        ("tgi_batch_preemptions", "Sequences put back to make room", "counter", stats.preemptions),
    ):
        yield from _heading(name, help, kind)
        yield f"{name} {value}"


def _heading(name: str, help: str, kind: str) -> Iterable[str]:
    return f"# HELP {name} {help}", f"# TYPE {name} {kind}"


def _labels(label: str, label_value: str, *more: tuple[str, str]) -> str:
    pairs = ([(label, label_value)] if label else []) + list(more)
    return "{" + ",".join(f'{name}="{value}"' for name, value in pairs) + "}" if pairs else ""


def _hundredths(maximum: int) -> list[float]:
    return [maximum / 100 * index for index in range(1, 101)]
