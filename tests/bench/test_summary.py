"""The six numbers against numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from text_generation_benchmark.summary import summarize

VALUES = st.lists(st.floats(min_value=1e-6, max_value=1e6), min_size=1, max_size=50)


@given(values=VALUES)
def test_summary_is_what_numpy_says(values: list[float]) -> None:
    summary = summarize(values)
    assert summary.average == pytest.approx(np.mean(values))
    assert (summary.lowest, summary.highest) == (np.min(values), np.max(values))
    assert (summary.p50, summary.p90, summary.p99) == pytest.approx(tuple(np.percentile(values, [50, 90, 99])))
