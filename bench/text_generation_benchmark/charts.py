"""Pictures of numbers in text: a histogram, and a curve through labelled points. Knows nothing about what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter

from rich.text import Text

_EIGHTHS = " ▁▂▃▄▅▆▇█"
# Legible on dark and on light.
BAR, AXIS, LINE, POINT, SELECTED = "#3a96c8", "#8a8a8a", "#6c7a89", "#3a96c8", "bold #e08a2e"
_BRAILLE = 0x2800
# Bits of a Braille character's dots: by column, then by row.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float
    label: str
    is_selected: bool = False


def short(value: float) -> str:
    """Four characters that matter, whatever the size."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def count_bins(values: Sequence[float], num_bins: int) -> list[int]:
    """Values in each of the equal parts from the lowest to the highest; all in the middle if they are equal."""
    low, high = min(values), max(values)
    counts = [0] * num_bins
    for value in values:
        share = (value - low) / (high - low) if high > low else 0.5
        counts[min(int(share * num_bins), num_bins - 1)] += 1
    return counts


def histogram(values: Sequence[float], width: int, height: int, num_bins: int) -> Text:
    """Bars over a line with the lowest and the highest value. Too small a place stays empty."""
    if not values or width < 4 or height < 2:
        return Text()
    num_bins = min(num_bins, width)
    counts = count_bins(values, num_bins)
    gap = 1 if width // num_bins > 2 else 0
    edges = [round(index * (width + gap) / num_bins) for index in range(num_bins + 1)]
    bars: list[str] = []
    for row in range(height - 2, -1, -1):
        line = ""
        for count, (left, right) in zip(counts, pairwise(edges), strict=True):
            # At least a sliver, or a single value among hundreds would not be seen.
            eighths = max(round(count / max(counts) * (height - 1) * 8), 1) if count else 0
            line += _EIGHTHS[min(max(eighths - row * 8, 0), 8)] * (right - left - gap) + " " * gap
        bars.append(line.rstrip())
    text = Text("\n".join(bars) + "\n", style=BAR, no_wrap=True)
    low, high = short(min(values)), short(max(values))
    text.append(low + high.rjust(max(width - len(low), len(high) + 1)), style=AXIS)
    return text


def curve(points: Sequence[Point], width: int, height: int) -> Text:
    """Lines from point to point, each with its label; both axes begin at zero. Too small a place stays empty."""
    if not points or width < 16 or height < 3:
        return Text()
    max_x, max_y = max(point.x for point in points), max(point.y for point in points)
    margin = len(short(max_y)) + 1
    # The last column keeps free of dots, so that the last label has a place beside its point.
    columns, rows = width - margin, height - 1
    canvas = _Canvas(columns, rows)
    right = (columns - 1 - max(len(point.label) for point in points)) * 2 - 1

    def place(point: Point) -> tuple[int, int]:
        return round(point.x / max_x * right), round((1 - point.y / max_y) * (rows * 4 - 1))

    for before, after in pairwise(points):
        canvas.draw_line(place(before), place(after))
    for point in sorted(points, key=lambda point: point.is_selected):
        x, y = place(point)
        canvas.write(x // 2, y // 4, f"●{point.label}", SELECTED if point.is_selected else POINT)

    text = Text(no_wrap=True)
    for row in range(rows):
        scale = short(max_y) if row == 0 else "0" if row == rows - 1 else ""
        text.append(scale.rjust(margin - 1) + "│", style=AXIS)
        text.append_text(canvas.line(row)).append("\n")
    text.append("0".rjust(margin) + short(max_x).rjust(right // 2 + 1), style=AXIS)
    return text


class _Canvas:
    """Cells of 2 x 4 dots, and words laid over them."""

    def __init__(self, columns: int, rows: int) -> None:
        self._dots = [[0] * columns for _ in range(rows)]
        self._words: dict[tuple[int, int], tuple[str, str]] = {}  # (row, column) -> (character, style)

    def draw_line(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Between two dots, both included."""
        length = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for step in range(length + 1):
            x = start[0] + round((end[0] - start[0]) * step / length)
            y = start[1] + round((end[1] - start[1]) * step / length)
            self._dots[y // 4][x // 2] |= _DOTS[x % 2][y % 4]

    def write(self, column: int, row: int, word: str, style: str) -> None:
        for offset, character in enumerate(word):
            self._words[row, column + offset] = (character, style)

    def line(self, row: int) -> Text:
        cells = [
            self._words.get((row, column), (chr(_BRAILLE + dots) if dots else " ", LINE))
            for column, dots in enumerate(self._dots[row])
        ]
        text = Text()
        for style, run in groupby(cells, key=itemgetter(1)):
            text.append("".join(character for character, _ in run), style=style)
        return text
