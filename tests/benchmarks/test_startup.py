"""What the log of a start is taken for."""

from __future__ import annotations

import pytest

from benchmarks.startup import ENDS, TOTAL, NoStart, Start, phases, table

_LOADED = "INFO shard-manager: text_generation_launcher: Loaded demo (llama) as float32 in 0.3 s rank=0\n"
_MOMENTS = dict(zip(ENDS, (0.25, 1.5, 1.5, 2.5, 2.75), strict=True))


def test_phases_add_up_to_the_total() -> None:
    found = phases(_MOMENTS, _LOADED, 3.0)
    assert sum(found.values()) - found[TOTAL] == pytest.approx(found[TOTAL]) == 3.0
    assert found["shard: weights"] == 0.3
    assert found["shard: imports"] == pytest.approx(0.95)
    assert list(found)[-1] == TOTAL


@pytest.mark.parametrize("lost", list(ENDS))
def test_a_log_without_the_end_of_a_phase_is_no_measurement(lost: str) -> None:
    moments = {phase: moment for phase, moment in _MOMENTS.items() if phase != lost}
    with pytest.raises(NoStart, match=lost):
        phases(moments, _LOADED, 3.0)


def test_the_table_shows_the_median_and_the_slowest() -> None:
    starts = [Start(phases(_MOMENTS, _LOADED, total), {"shard": total}) for total in (3.0, 3.2, 9.0)]
    lines = table({"files in memory": starts}).splitlines()
    assert f"| {TOTAL} | 3.20 | 9.00 |" in lines
    assert "| CPU of the shard | 3.20 | 9.00 |" in lines
