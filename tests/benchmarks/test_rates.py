"""The sums that benchmarks show, on arrival times whose answer is known."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rates import Run, percentile, poisson_schedule, spread


def test_decode_of_one_stream_counts_from_its_first_token() -> None:
    # 2 s of prompt, then a token every 0.1 s
    run = Run([10.0], [[12.0 + 0.1 * index for index in range(11)]])
    assert run.decode_rate() == pytest.approx(10.0)
    assert run.total_rate() == pytest.approx(11 / 3.0)
    assert run.first_token_s() == pytest.approx(2.0)
    assert run.inter_token_times_s() == pytest.approx([0.1] * 10)


def test_decode_of_several_streams_is_the_time_in_which_all_of_them_run() -> None:
    early = [1.0, 2.0, 3.0, 4.0, 5.0]
    late = [3.0, 4.0, 5.0, 6.0, 7.0]
    run = Run([0.0, 0.0], [early, late])
    assert run.decode_rate() == pytest.approx(2.0)  # from 3 s to 5 s: two tokens of each
    assert run.num_tokens == 10
    assert run.total_rate() == pytest.approx(10 / 7)
    assert run.first_token_s() == pytest.approx(2.0)


def test_streams_that_never_ran_together_have_no_decode_rate() -> None:
    assert Run([0.0, 0.0], [[1.0, 2.0], [3.0, 4.0]]).decode_rate() is None
    assert Run([0.0], [[1.0]]).decode_rate() is None
    assert Run([], []).decode_rate() is None


def test_run_survives_its_pipe() -> None:
    run = Run([0.5], [[1.25, 1.5]], ["text"], [[3, 4]], ["one failed"])
    assert Run.from_json(run.to_json()) == run


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 100))
def test_percentile_is_numpys(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)), abs=1e-6)


def test_percentile_of_nothing_is_no_number() -> None:
    assert math.isnan(percentile([], 50))


def test_open_loop_comes_at_its_rate_and_independently() -> None:
    schedule_s = poisson_schedule(5.0, 4000, seed=3)
    gaps_s = [later - earlier for earlier, later in pairwise(schedule_s)]
    assert min(gaps_s) >= 0
    assert mean(gaps_s) == pytest.approx(1 / 5, rel=0.05)
    # Of independent arrivals the gaps' deviation is their mean, and a share of 1 - 1/e is shorter than it.
    assert np.std(gaps_s) == pytest.approx(1 / 5, rel=0.1)
    assert mean(gap < 1 / 5 for gap in gaps_s) == pytest.approx(1 - 1 / math.e, abs=0.03)
    assert poisson_schedule(5.0, 4000, seed=3) == schedule_s


@given(st.lists(st.floats(0, 100), min_size=1).map(sorted), st.integers(1, 200))
def test_tokens_are_spread_over_all_events_in_order(arrivals_s: list[float], num_tokens: int) -> None:
    tokens_s = spread(arrivals_s, num_tokens)
    assert len(tokens_s) == num_tokens
    assert tokens_s == sorted(tokens_s)
    assert tokens_s[0] == arrivals_s[0]
    if num_tokens >= len(arrivals_s):
        assert set(tokens_s) == set(arrivals_s)
