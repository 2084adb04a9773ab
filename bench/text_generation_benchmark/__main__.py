"""`text-generation-benchmark`: measures a running shard, shows it live, and ends with Markdown tables."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from text_generation_benchmark import progress_lines, report
from text_generation_benchmark.measurement import Measurement, worker_command
from text_generation_benchmark.results import Results
from text_generation_benchmark.settings import BenchmarkSettings
from text_generation_cli.options import parse

_PROGRAM = "text-generation-benchmark"
_DESCRIPTION = (
    "Measures prefill and decode on an idle shard (`text-generation-server serve`), without HTTP and text around it. "
    "Tables go to standard output, everything else to standard error."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns: 0 when all was measured or the user quit, 1 after a failure, 128 + the number of a signal."""
    values = parse(_PROGRAM, BenchmarkSettings, sys.argv[1:] if argv is None else argv, os.environ, _DESCRIPTION)
    settings = values.build(BenchmarkSettings)
    output = None if settings.output_json is None else Path(settings.output_json)
    if output is not None and not _is_writable(output):
        return _fail(f"{output} cannot be written; choose another file with --output-json")

    results = Results(settings)
    show = _show_screen if _use_screen(settings) else _print_progress
    status = asyncio.run(_measure(results, show))
    if results.measured:
        print(report.markdown(results), end="", flush=True)
    if output is not None:
        output.write_text(report.as_json(results), encoding="utf-8")
    return status if results.error is None else _fail(results.error)


def _fail(message: str) -> int:
    print(f"Error: {message}", file=sys.stderr)
    return 1


def _is_writable(path: Path) -> bool:
    """Seen before measuring, which may take an hour."""
    try:
        path.open("a").close()
    except OSError:
        return False
    return True


def _use_screen(settings: BenchmarkSettings) -> bool:
    """Only if keyboard and both outputs are a terminal: a pager at the other end of a pipe wants the keyboard, too."""
    is_terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    if not settings.tui or not is_terminal or os.environ.get("TERM", "dumb") == "dumb":
        return False
    if importlib.util.find_spec("textual") is None:
        print("Progress lines instead of the live view, which needs textual: pip install textual", file=sys.stderr)
        return False
    return True


async def _measure(results: Results, show: Callable[[Measurement, Results], Awaitable[None]]) -> int:
    """Returns: 0, or 128 + the number of the signal that ended it."""
    caught: list[int] = []
    async with Measurement(worker_command(results.settings)) as measurement:
        showing = asyncio.ensure_future(show(measurement, results))

        def stop(number: int) -> None:
            caught.append(number)
            showing.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        await asyncio.wait((showing,))
        if not showing.cancelled():
            showing.result()
    return 128 + caught[0] if caught else 0


async def _show_screen(measurement: Measurement, results: Results) -> None:
    # Not at the top: textual is an extra, which progress lines do without.
    from text_generation_benchmark.screen import BenchmarkApp  # noqa: PLC0415

    await BenchmarkApp(results, measurement).run_async()


async def _print_progress(measurement: Measurement, results: Results) -> None:
    await progress_lines.follow(measurement, results, _print_error)


def _print_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
