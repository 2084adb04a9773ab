"""Takes the pictures of docs/screenshots from a benchmark of an idle shard, which is really run:
`python -m tests.bench.screenshots -m SOCKET [options of text-generation-benchmark]`.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from text_generation_benchmark.measurement import Measurement, worker_command
from text_generation_benchmark.report import markdown
from text_generation_benchmark.results import Results
from text_generation_benchmark.screen import BenchmarkApp
from text_generation_benchmark.settings import BenchmarkSettings
from text_generation_cli.options import parse

_FOLDER = Path(__file__).parents[2] / "docs" / "screenshots"
# A page that shows a picture fetches nothing from elsewhere: the reader's own monospace font has to do.
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def _take(app: BenchmarkApp, name: str) -> None:
    picture = _FONTS.sub("", app.export_screenshot()).replace("Fira Code, monospace", "monospace")
    (_FOLDER / name).write_text(picture, encoding="utf-8")


async def _run(settings: BenchmarkSettings) -> str:
    results = Results(settings)
    async with Measurement(worker_command(settings)) as measurement:
        app = BenchmarkApp(results, measurement)
        async with app.run_test(size=(160, 50)) as pilot:
            half = settings.batch_sizes[len(settings.batch_sizes) // 2]
            while not results.has_ended and results.fraction(half) < 0.5:
                await pilot.pause(0.05)
            _take(app, "benchmark-160.svg")
            await pilot.resize_terminal(80, 24)
            while not results.has_ended:
                await pilot.pause(0.05)
            await pilot.pause()
            _take(app, "benchmark-80.svg")
    return results.error or markdown(results)


if __name__ == "__main__":
    print(asyncio.run(_run(parse("screenshots", BenchmarkSettings, sys.argv[1:], {}).build(BenchmarkSettings))))
