"""Where results go: between markers of a page, and as plots beside it."""

from __future__ import annotations

import datetime
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import machine_line

if importlib.util.find_spec("matplotlib"):
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("svg")
    # Without random ids, a plot of the same numbers is the same file.
    matplotlib.rcParams["svg.hashsalt"] = "benchmarks"
    has_matplotlib = True
else:
    has_matplotlib = False

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"


class NoPlace(Exception):
    """A page without the markers that a result is written between."""


def place(text: str, name: str, path: Path) -> tuple[str, str]:
    """What stands before and after the result `name`, markers included. Raises NoPlace."""
    begins, ends = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found_begin, rest = text.partition(begins)
    _, found_end, after = rest.partition(ends)
    if not (found_begin and found_end):
        raise NoPlace(f"{path} has no lines {begins} and {ends} to write between")
    return before + begins, ends + after


def check_page(path: Path | None, name: str) -> None:
    """Raises NoPlace: before minutes of measuring, not after."""
    if path is not None:
        place(path.read_text() if path.is_file() else "", name, path)


def publish(path: Path | None, name: str, text: str) -> None:
    """Print a result, and put it into the page if one is given. Raises NoPlace."""
    print(text)
    if path is not None:
        before, after = place(path.read_text(), name, path)  # read again: it may have been edited meanwhile
        path.write_text(f"{before}\n{text.strip()}\n{after}")


def heading(isa: str | None, loads: tuple[float, float]) -> str:
    """Date, machine, instruction set and how busy the machine was: what every table begins with."""
    date = datetime.datetime.now(datetime.timezone.utc).date()
    held = f"held to {isa}" if isa else "best instruction set of each"
    return f"{date}, {machine_line()}; {held}; load average {loads[0]:.1f} before, {loads[1]:.1f} after."


def plot_folder(page: Path) -> Path:
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def plot_bars(path: Path, title: str, groups: Sequence[str], bars: Mapping[str, Sequence[float | None]]) -> str:
    """Groups of bars, one bar of each kind in a group; what is None is left out.

    Returns: Markdown that shows it, for a page beside the plot's folder; empty without matplotlib.
    """
    if not _can_plot(path):
        return ""
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    width = 0.85 / len(bars)
    for index, (name, values) in enumerate(bars.items()):
        places = [group - 0.425 + (index + 0.5) * width for group in range(len(groups))]
        axes.bar(places, [value or 0 for value in values], width, label=name)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=7, ncols=2)
    axes.grid(axis="y", alpha=0.3)
    return _save(figure, path, title)


def plot_lines(
    path: Path,
    title: str,
    axis_names: tuple[str, str],
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    log_y: bool = False,
) -> str:
    """One line for each name through its points, x logarithmic. Returns: as `plot_bars`."""
    if not _can_plot(path):
        return ""
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name, points in lines.items():
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=name)
    axes.set_xscale("log", base=2)
    if log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(axis_names[0])
    axes.set_ylabel(axis_names[1])
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return _save(figure, path, title)


def _can_plot(path: Path) -> bool:
    if not has_matplotlib:
        print(f"{path} is not drawn: matplotlib is not installed; it comes with the extra `bench`", file=sys.stderr)
    return has_matplotlib


def _save(figure: Any, path: Path, title: str) -> str:
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return f"![{title}]({path.parent.name}/{path.name})"
