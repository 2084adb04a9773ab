"""The full-screen view, driven by keys and a mouse, over a real shard or over a process that says what a test wants."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from textual.pilot import Pilot
from textual.widgets import Static, Tabs

from tests.bench.shards import is_clean
from text_generation_benchmark.events import Event, Facts, Failed, Progress, Run, to_line
from text_generation_benchmark.measurement import Measurement, worker_command
from text_generation_benchmark.results import Results
from text_generation_benchmark.screen import BenchmarkApp, Curve, Histogram, Statistics
from text_generation_benchmark.settings import BenchmarkSettings

FACTS = Facts("some/where/tiny", "0.1.0", "cpu", "float32", 1)
SETTINGS = BenchmarkSettings(batch_size=(1, 2, 4), runs=2, warmups=0, decode_length=3)


def says(lines: Sequence[Event]) -> list[str]:
    """A measuring process that says this, waits for each run to be shown, and then for its end."""
    script = "import sys\nfor line in sys.argv[1:]:\n print(line, flush=True)\n if '\"run\"' in line: input()\ninput()"
    return [sys.executable, "-c", script, *map(to_line, lines)]


def runs(*sizes: int) -> list[Event]:
    """Two of each size; each run of size n takes n times as long."""
    return [Run(size, 0.010 * size, (0.001 * size, 0.003 * size)) for size in sizes for _ in range(2)]


@asynccontextmanager
async def showing(
    settings: BenchmarkSettings, command: list[str], size: tuple[int, int] = (80, 24)
) -> AsyncIterator[tuple[BenchmarkApp, Pilot[None]]]:
    async with Measurement(command) as measurement:
        app = BenchmarkApp(Results(settings), measurement)
        async with app.run_test(size=size) as pilot:
            yield app, pilot


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not condition():
            await pilot.pause(0.02)
        await pilot.pause()

    await asyncio.wait_for(wait(), 60)


def seen(app: BenchmarkApp) -> str:
    """The whole screen as text."""
    screen = app.screen
    return "\n".join(strip.text for strip in screen._compositor.render_strips())


def test_all_of_a_real_benchmark_is_shown_and_the_shard_is_left_clean(shard: str) -> None:
    settings = BenchmarkSettings(batch_size=(1, 3), runs=3, master_shard_uds_path=shard)

    async def test() -> None:
        async with showing(settings, worker_command(settings)) as (app, pilot):
            await until(pilot, lambda: app.results.has_ended)
            assert app.results.error is None
            assert app.selected == 3  # it went along with the measuring
            text = seen(app)
            for words in ("1 ✓", "3 ✓", "100%", "All runs are made", "Average", "p99", "tokens/s", "21 values"):
                assert words in text, text
            await pilot.press("q")
            assert app.return_code == 0

    asyncio.run(test())
    assert is_clean(shard)


def test_quitting_half_way_leaves_the_shard_clean(shard: str) -> None:
    settings = BenchmarkSettings(batch_size=(2,), runs=1000, decode_length=300, master_shard_uds_path=shard)

    async def test() -> None:
        async with showing(settings, worker_command(settings)) as (app, pilot):
            await until(pilot, lambda: app.results.num_runs >= 1)
            await pilot.press("ctrl+c")
        assert not app.results.has_ended

    asyncio.run(test())
    assert is_clean(shard)


@pytest.mark.parametrize(
    ("keys", "selected"),
    [("left", 2), ("h", 2), ("shift+tab", 2), ("right", 1), ("l", 1), ("tab", 1), ("h h", 1), ("h h h", 4)],
)
def test_keys_go_round_the_batch_sizes(keys: str, selected: int) -> None:
    async def test() -> None:
        async with showing(SETTINGS, says([FACTS, *runs(1, 2, 4)])) as (app, pilot):
            await until(pilot, lambda: app.results.num_runs == 6)
            assert app.selected == 4
            await pilot.press(*keys.split())
            await pilot.pause()
            assert app.selected == selected
            assert app.query_one(Tabs).active == f"size-{selected}"
            # The average prefill of this size, in its table.
            assert f"{10.0 * selected:.2f}" in seen(app)

    asyncio.run(test())


def test_mouse_chooses_a_batch_size_that_then_stays() -> None:
    async def test() -> None:
        async with showing(SETTINGS, says([FACTS, *runs(1, 2)])) as (app, pilot):
            await until(pilot, lambda: app.results.num_runs == 4)
            await pilot.click("#size-1")
            await pilot.pause()
            assert app.selected == 1
            app.results.apply(Progress(4, 1, False, 0.0))
            app._show()
            assert (app.selected, app.results.current) == (1, 4)

    asyncio.run(test())


def test_error_is_shown_in_red_until_the_user_quits() -> None:
    async def test() -> None:
        async with showing(SETTINGS, says([FACTS, *runs(1), Failed("the shard failed: rank 0: device lost")])) as (
            app,
            pilot,
        ):
            await until(pilot, lambda: app.results.error is not None)
            assert "the shard failed: rank 0: device lost" in seen(app)
            assert app.query_one("#status", Static).has_class("failed")
            assert app.is_running
            await pilot.press("q")

    asyncio.run(test())


def test_measuring_process_that_dies_is_an_error_with_its_last_words() -> None:
    async def test() -> None:
        command = [sys.executable, "-c", "raise SystemExit('no memory')"]
        async with showing(SETTINGS, command) as (app, pilot):
            await until(pilot, lambda: app.results.has_ended)
            assert app.results.error == "the measuring process ended with status 1: no memory"
            await pilot.press("q")

    asyncio.run(test())


def test_zoom_changes_the_number_of_bars() -> None:
    async def test() -> None:
        async with showing(SETTINGS, says([FACTS, *runs(1)]), (160, 50)) as (app, pilot):
            await until(pilot, lambda: app.results.num_runs == 2)
            token = list(app.query(Histogram))[1]

            def width_of_a_bar() -> int:
                return len(token.render().plain.splitlines()[-2].split(" ")[0])

            before = width_of_a_bar()
            await pilot.press("plus", "plus", "plus")
            assert width_of_a_bar() < before
            await pilot.press(*["minus"] * 5)
            assert width_of_a_bar() > before

    asyncio.run(test())


@pytest.mark.parametrize(("size", "both"), [((80, 24), False), ((160, 50), True)])
def test_low_terminal_shows_one_row_of_charts_and_a_key_for_the_other(size: tuple[int, int], both: bool) -> None:
    async def test() -> None:
        async with showing(SETTINGS, says([FACTS, *runs(1, 2, 4)]), size) as (app, pilot):
            await until(pilot, lambda: app.results.num_runs == 6)
            assert "Decode token, ms" in seen(app)
            assert ("tokens/s over ms" in seen(app)) is both
            assert ("Other charts" in seen(app)) is not both
            await pilot.press("c")
            await pilot.pause()
            assert ("Decode token, ms" in seen(app)) is both
            assert "tokens/s over ms" in seen(app)
            drawn = app.query(Curve).last().render().plain
            assert all(f"●{label}" in drawn for label in ("1", "2", "4"))

    asyncio.run(test())


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
def test_nothing_is_cut_off(size: tuple[int, int]) -> None:
    large = [Run(32, 0.00123, (0.0000123,) * 2)]  # millions of tokens a second

    async def test() -> None:
        async with showing(BenchmarkSettings(batch_size=(32,), runs=1), says([FACTS, *large]), size) as (app, pilot):
            await until(pilot, lambda: app.results.num_runs == 1)
            text = seen(app)
            for words in ("Average", "Lowest", "Highest", "token, ms", "total, ms", "2,601,626", "q Quit", "tiny"):
                assert words in text, text
            assert all(table.size.height == 7 for table in app.query(Statistics))

    asyncio.run(test())


def test_terminal_of_a_few_cells_does_not_break_it() -> None:
    async def test() -> None:
        async with showing(SETTINGS, says([FACTS, *runs(1, 2)]), (20, 6)) as (app, pilot):
            await until(pilot, lambda: app.results.num_runs == 4)
            await pilot.press("c", "plus", "h")
            await pilot.resize_terminal(200, 60)
            assert app.is_running

    asyncio.run(test())
