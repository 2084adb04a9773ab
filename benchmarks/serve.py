"""Load on any server of TGI's API or OpenAI's: `python -m benchmarks.serve --url http://127.0.0.1:8080`.

Closed loop (`--streams`: so many at a time, each sends its next request when the last has ended) or open loop
(`--rate`: requests come at random moments, so many a second, whether or not the server keeps up). Prints a Markdown
table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from benchmarks.load import closed_loop, open_loop
from benchmarks.prompts import PromptSource
from benchmarks.rates import Run, percentile, poisson_schedule
from benchmarks.streams import LoadError, Target
from text_generation_server.download.demo_model import demo_model_folder

HEADER = (
    "| load | answered | failed | tok/s | decode tok/s | first token p50 / p99, ms | between tokens p50 / p99, ms |",
    "|---|---:|---:|---:|---:|---:|---:|",
)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.serve", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--api", choices=("tgi", "openai"), default="tgi")
    parser.add_argument("--model", help="OpenAI's field; default: the first of /v1/models")
    load = parser.add_mutually_exclusive_group()
    load.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32], metavar="N", help="closed loop")
    load.add_argument("--rate", type=float, nargs="+", metavar="R", help="open loop: requests per second")
    parser.add_argument(
        "--requests", type=int, help="for each row; default: two for each stream, or a minute of --rate"
    )
    parser.add_argument("--prompt-tokens", type=int, default=130)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--grace", type=float, default=60.0, help="open loop: seconds to wait for the last answers")
    parser.add_argument(
        "--tokenizer", type=Path, help="folder with the model's tokenizer.json; default: the demo model's"
    )
    parser.add_argument("--seed", type=int, default=time.time_ns(), help="of prompts and moments")
    return parser.parse_args(arguments)


def row(name: str, run: Run) -> str:
    """One line of the table."""
    if not run.arrivals_s:
        return f"| {name} | 0 | {len(run.errors)} | - | - | - | - |"
    decode = run.decode_rate()
    first, between = run.first_token_times_s(), run.inter_token_times_s()
    cells = [
        name,
        str(len(run.arrivals_s)),
        str(len(run.errors)),
        f"{run.total_rate():.1f}",
        "-" if decode is None else f"{decode:.1f}",
        f"{1000 * percentile(first, 50):.0f} / {1000 * percentile(first, 99):.0f}",
        f"{1000 * percentile(between, 50):.1f} / {1000 * percentile(between, 99):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def first_model(url: str) -> str:
    """Raises LoadError."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/v1/models", timeout=30) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except (urllib.error.URLError, OSError, LookupError, ValueError) as error:
        raise LoadError(f"{url}/v1/models names no model ({error}); give --model") from error


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    model = options.model or (first_model(options.url) if options.api == "openai" else "tgi")
    target = Target(options.url, options.api, model, endless=False)
    source = PromptSource((options.tokenizer or demo_model_folder()) / "tokenizer.json", options.seed)

    def prompts(count: int) -> list[str]:
        return [prompt.text for prompt in source.take(count, options.prompt_tokens)]

    print("\n".join(HEADER), flush=True)
    errors: list[str] = []
    if options.rate:
        for rate in options.rate:
            count = options.requests or max(1, round(60 * rate))
            schedule_s = poisson_schedule(rate, count, options.seed)
            run = asyncio.run(open_loop(target, prompts(count), options.new_tokens, schedule_s, options.grace))
            print(row(f"{rate:g} requests/s", run), flush=True)
            errors += run.errors
    else:
        for streams in options.streams:
            count = options.requests or 2 * streams
            run = asyncio.run(closed_loop(target, prompts(count), options.new_tokens, streams))
            print(row(f"{streams} streams", run), flush=True)
            errors += run.errors
    for error in sorted(set(errors)):
        print(f"{errors.count(error)} x {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except LoadError as error:
        sys.exit(f"error: {error}")
