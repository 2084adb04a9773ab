"""Charts keep inside their place, and show what they are given."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from text_generation_benchmark.charts import Point, count_bins, curve, histogram, short

VALUES = st.lists(st.floats(min_value=0.001, max_value=1e6), min_size=1, max_size=40)
SIZES = st.tuples(st.integers(0, 90), st.integers(0, 30))


def fits(text: str, width: int, height: int) -> bool:
    lines = text.splitlines()
    return len(lines) <= height and all(len(line) <= width for line in lines)


@given(values=st.lists(st.integers(0, 1000), min_size=2, max_size=60), num_bins=st.integers(1, 20))
def test_bins_are_numpys(values: list[int], num_bins: int) -> None:
    low, high = min(values), max(values)
    # At an edge between two bins, and where all values are equal, rounding may choose differently.
    edges = np.linspace(low, high, num_bins + 1)[1:-1]
    if low < high and not any(np.isclose(value, edges).any() for value in values):
        assert count_bins(values, num_bins) == np.histogram(values, num_bins)[0].tolist()
    assert sum(count_bins(values, num_bins)) == len(values)


@given(values=VALUES, size=SIZES, num_bins=st.integers(1, 60))
def test_histogram_fits_its_place(values: list[float], size: tuple[int, int], num_bins: int) -> None:
    # A number is never cut: it may be wider than a place of a few columns.
    assert fits(histogram(values, *size, num_bins).plain, max(size[0], 24), size[1])


@given(values=VALUES, size=SIZES)
def test_curve_fits_its_place(values: list[float], size: tuple[int, int]) -> None:
    points = [Point(value, value, str(number + 1)) for number, value in enumerate(values)]
    assert fits(curve(points, *size).plain, max(size[0], 24), size[1])


def test_histogram_draws_heights_in_eighths() -> None:
    drawn = histogram([1.0] * 8 + [2.0] * 4 + [3.0], 11, 3, 3).plain.splitlines()
    assert drawn == ["███", "███ ███ ▂▂▂", "1.00   3.00"]


def test_equal_values_stand_in_the_middle() -> None:
    assert count_bins([2.0, 2.0, 2.0], 5) == [0, 0, 3, 0, 0]


def test_curve_labels_every_point_and_marks_the_selected_one() -> None:
    drawn = curve([Point(1, 10, "1"), Point(2, 20, "2", is_selected=True), Point(4, 25, "32")], 60, 12)
    assert all(f"●{label}" in drawn.plain for label in ("1", "2", "32"))
    selected = "".join(drawn.plain[span.start : span.end] for span in drawn.spans if "bold" in str(span.style))
    assert selected == "●2"
    assert drawn.plain.splitlines()[0].startswith("25.00│")
    assert drawn.plain.splitlines()[-1].rstrip().endswith("4.00")


def test_numbers_are_short() -> None:
    assert [short(value) for value in (0.1234, 12.345, 123.45, 12345.6)] == ["0.12", "12.35", "123.5", "12,346"]
