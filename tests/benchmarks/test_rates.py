"""The sums that `make bench` shows, on arrival times whose answer is known."""

from __future__ import annotations

import pytest

from benchmarks.rates import Run


def test_decode_of_one_stream_counts_from_its_first_token() -> None:
    # 2 s of prompt, then a token every 0.1 s
    run = Run([10.0], [[12.0 + 0.1 * index for index in range(11)]])
    assert run.decode_rate() == pytest.approx(10.0)
    assert run.total_rate() == pytest.approx(11 / 3.0)
    assert run.first_token_s() == pytest.approx(2.0)


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


def test_run_survives_its_pipe() -> None:
    run = Run([0.5], [[1.25, 1.5]])
    assert Run.from_json(run.to_json()) == run
