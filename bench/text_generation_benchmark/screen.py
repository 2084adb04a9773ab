"""The full-screen view: a tab for each batch size, its tables and histograms, and what batch size does to throughput.

Draws what the results hold whenever an event has come, and tells the measuring process when that is done. Needs
textual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual import events, on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Footer, ProgressBar, Static, Tab, Tabs

from text_generation_benchmark import charts
from text_generation_benchmark.charts import Point, short
from text_generation_benchmark.events import Run
from text_generation_benchmark.measurement import Measurement
from text_generation_benchmark.report import shown_model
from text_generation_benchmark.results import Results, Series
from text_generation_benchmark.summary import HEADINGS, summarize

# Rows of a terminal from which on histograms and curves have room beside each other.
_TALL = 36
_MIN_BINS, _MAX_BINS = 2, 60


class Statistics(Static):
    """A table of the six numbers, with a column for each of `columns`: its heading and its values."""

    def __init__(self, title: str, columns: Sequence[tuple[str, Callable[[Series], Sequence[float]]]]) -> None:
        super().__init__(classes="panel statistics")
        self.border_title = title
        self._columns = columns

    def show(self, series: Series | None) -> None:
        table = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
        table.add_column("", style=charts.AXIS)
        summaries = []
        for heading, values_of in self._columns:
            table.add_column(heading, justify="right", no_wrap=True)
            summaries.append(None if series is None else asdict(summarize(values_of(series))))
        for field, name in HEADINGS.items():
            table.add_row(name, *("-" if summary is None else short(summary[field]) for summary in summaries))
        self.update(table)


class Histogram(Widget):
    def __init__(self, title: str, values_of: Callable[[Series], Sequence[float]]) -> None:
        super().__init__(classes="panel latencies")
        self.border_title = title
        self._values_of = values_of
        self._values: Sequence[float] = ()
        self._num_bins = 0

    def show(self, series: Series | None, num_bins: int) -> None:
        self._values = () if series is None else self._values_of(series)
        self._num_bins = num_bins
        self.border_subtitle = f"{len(self._values)} values" if self._values else ""
        self.refresh()

    def render(self) -> Text:
        return charts.histogram(self._values, self.size.width, self.size.height, self._num_bins)


class Curve(Widget):
    """Throughput over latency, a point for each batch size."""

    def __init__(
        self, title: str, x_of: Callable[[Series], Sequence[float]], y_of: Callable[[Series], Sequence[float]]
    ) -> None:
        super().__init__(classes="panel throughputs")
        self.border_title = title
        self._x_of, self._y_of = x_of, y_of
        self._points: list[Point] = []

    def show(self, results: Results, selected: int) -> None:
        self._points = []
        for batch_size in results.measured:
            series = results.series(batch_size)
            x, y = (summarize(values_of(series)).average for values_of in (self._x_of, self._y_of))
            self._points.append(Point(x, y, str(batch_size), batch_size == selected))
        self.refresh()

    def render(self) -> Text:
        return charts.curve(self._points, self.size.width, self.size.height)


class BenchmarkApp(App[None]):
    """Shows `results` as `measurement`, already started, fills them, and stays until the user quits."""

    TITLE = "text-generation-benchmark"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #title { height: 1; background: $primary 30%; padding: 0 1; }
    #sizes { height: 2; }
    #sizes > Static { width: 12; padding: 0 1; color: $text-muted; }
    #sizes Tabs { width: 1fr; height: 2; }
    #gauges { height: 1; padding: 0 1; }
    #gauges Static { width: auto; padding: 0 1 0 0; color: $text-muted; }
    #gauges ProgressBar { width: 1fr; }
    #gauges Bar { width: 1fr; }
    #gauges PercentageStatus { width: 6; padding: 0 1 0 0; }
    #status { height: 1; padding: 0 1; text-overflow: ellipsis; text-wrap: nowrap; }
    #status.failed { background: $error; color: $text; height: auto; max-height: 3; text-wrap: wrap; }
    .numbers { height: 9; }
    .charts { height: 1fr; }
    .panel { border: round $primary 60%; border-title-color: $text; border-subtitle-color: $text-muted; padding: 0 1; }
    .statistics { width: 1fr; height: 9; }
    .latencies, .throughputs { width: 1fr; height: 1fr; }
    .low.showing-latencies #throughputs { display: none; }
    .low.showing-throughputs #latencies { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h,shift+tab", "move(-1)", show=False, priority=True),
        Binding("right,l,tab", "move(1)", "Batch size", key_display="← →", priority=True),
        Binding("plus,equals_sign", "zoom(2)", "More bars", key_display="+"),
        Binding("minus", "zoom(-2)", "Fewer bars", key_display="-"),
        Binding("c", "switch_charts", "Other charts"),
        Binding("q,ctrl+c,ctrl+q", "quit", "Quit", key_display="q", priority=True),
    ]

    def __init__(self, results: Results, measurement: Measurement) -> None:
        super().__init__()
        self.animation_level = "none"  # the processor is the shard's
        self.results = results
        self.selected = results.settings.batch_sizes[0]
        self._measurement = measurement
        self._follows = True  # selects whatever is being measured, until the user chooses for himself
        self._num_bins = 10
        self._latencies_are_shown = True

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        with Horizontal(id="sizes"):
            yield Static("Batch size")
            yield Tabs(*(Tab(str(size), id=_tab_id(size)) for size in self.results.settings.batch_sizes))
        with Horizontal(id="gauges"):
            yield Static("Total")
            yield ProgressBar(total=1, show_eta=False, id="total")
            yield Static("This batch size")
            yield ProgressBar(total=1, show_eta=False, id="batch")
        yield Static(id="status", markup=False)
        with Horizontal(classes="numbers"):
            yield Statistics(
                "Prefill",
                (("total, ms", lambda series: series.prefill_ms), ("tokens/s", lambda series: series.prefill_rate)),
            )
            yield Statistics(
                "Decode",
                (
                    ("token, ms", lambda series: series.token_ms),
                    ("total, ms", lambda series: series.decode_ms),
                    ("tokens/s", lambda series: series.decode_rate),
                ),
            )
        with Horizontal(classes="charts", id="latencies"):
            yield Histogram("Prefill, ms", lambda series: series.prefill_ms)
            yield Histogram("Decode token, ms", lambda series: series.token_ms)
            yield Histogram("Decode total, ms", lambda series: series.decode_ms)
        with Horizontal(classes="charts", id="throughputs"):
            yield Curve(
                "Prefill, tokens/s over ms", lambda series: series.prefill_ms, lambda series: series.prefill_rate
            )
            yield Curve(
                "Decode, tokens/s over ms a token", lambda series: series.token_ms, lambda series: series.decode_rate
            )
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(Tabs).can_focus = False  # its keys are ours
        self._show_charts()
        self._show()
        self._follow()

    def on_resize(self, event: events.Resize) -> None:
        self.screen.set_class(event.size.height < _TALL, "low")
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A tall terminal shows all charts, and has no key to switch them."""
        return self.size.height < _TALL if action == "switch_charts" else True

    # ------------------------------------------------------------------------------------------------ measuring

    @work
    async def _follow(self) -> None:
        async for event in self._measurement.events():
            self.results.apply(event)
            if self._follows:
                self.selected = self.results.current
            self._show()
            if isinstance(event, Run):
                self.call_after_refresh(self._measurement.shown)

    # ------------------------------------------------------------------------------------------------ drawing

    def _show(self) -> None:
        results = self.results
        self.query_one("#title", Static).update(self._title())
        self.query_one("#total", ProgressBar).update(progress=results.total_fraction())
        self.query_one("#batch", ProgressBar).update(progress=results.fraction(self.selected))
        status = self.query_one("#status", Static)
        status.update(self._status())
        status.set_class(results.error is not None, "failed")
        tabs = self.query_one(Tabs)
        for size in results.settings.batch_sizes:
            tabs.query_one(f"#{_tab_id(size)}", Tab).label = f"{size}{self._mark(size)}"
        tabs.active = _tab_id(self.selected)
        series = results.series(self.selected) if results.runs.get(self.selected) else None
        for table in self.query(Statistics):
            table.show(series)
        for histogram in self.query(Histogram):
            histogram.show(series, self._num_bins)
        for curve in self.query(Curve):
            curve.show(results, self.selected)

    def _show_charts(self) -> None:
        self.screen.set_class(self._latencies_are_shown, "showing-latencies")
        self.screen.set_class(not self._latencies_are_shown, "showing-throughputs")

    def _title(self) -> Text:
        settings, facts = self.results.settings, self.results.facts
        title = Text("text-generation-benchmark", style="bold", no_wrap=True, overflow="ellipsis")
        details = [f"prompt {settings.sequence_length}", f"decode {settings.decode_length}"]
        if facts is not None:
            details.append(f"{facts.dtype} on {facts.device}")
        # The end of a path says more than its beginning.
        name = shown_model(self.results).rstrip("/").rpartition("/")[2]
        title.append(f"  {name} · {' · '.join(details)}", style="not bold")
        return title

    def _status(self) -> str:
        results = self.results
        if results.error is not None:
            return results.error
        return "All runs are made. q leaves this view and prints the tables." if results.is_done else results.stage

    def _mark(self, batch_size: int) -> str:
        if len(self.results.runs.get(batch_size, ())) == self.results.settings.runs:
            return " ✓"
        is_running = not self.results.has_ended and batch_size == self.results.current
        return " ●" if is_running and self.results.facts is not None else "  "

    # ------------------------------------------------------------------------------------------------ keys

    @on(Tabs.TabActivated)
    def _choose(self, event: Tabs.TabActivated) -> None:
        """By mouse, or the echo of our own choice."""
        chosen = next(size for size in self.results.settings.batch_sizes if _tab_id(size) == event.tab.id)
        if chosen != self.selected:
            self._select(chosen)

    def _select(self, batch_size: int) -> None:
        self.selected = batch_size
        self._follows = batch_size == self.results.current
        self._show()

    def action_move(self, by: int) -> None:
        sizes = self.results.settings.batch_sizes
        self._select(sizes[(sizes.index(self.selected) + by) % len(sizes)])

    def action_zoom(self, by: int) -> None:
        self._num_bins = min(max(self._num_bins + by, _MIN_BINS), _MAX_BINS)
        self._show()

    def action_switch_charts(self) -> None:
        self._latencies_are_shown = not self._latencies_are_shown
        self._show_charts()


def _tab_id(batch_size: int) -> str:
    return f"size-{batch_size}"
