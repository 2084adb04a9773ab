"""What a token costs in the router, with a shard that answers at once: `python -m benchmarks.router`.

HTTP and gRPC are real. Router, shard and client share the machine's cores, so events per second say what fits on it;
the processor time of the router for each token is its own and does not depend on the others. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.machine import load_average
from benchmarks.programs import Program, Server, free_port, run_benchmark, run_load, stopping
from benchmarks.prompts import Prompt, PromptSource
from benchmarks.report import check_page, heading, publish
from benchmarks.streams import Api, LoadError, Target
from text_generation_server.download.demo_model import demo_model_folder

NAME = "benchmarks.router"
ROUTES: dict[Api, str] = {"tgi": "/generate_stream", "openai": "/v1/completions"}


@dataclass(frozen=True)
class Cost:
    """Of one run."""

    events_per_s: float
    router_us: float  # processor time for each token
    shard_us: float


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=NAME, description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256], metavar="N")
    parser.add_argument("--tokens", type=int, default=30000, help="of all streams of a run together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path, help="folder with the tokenizer; default: the demo model")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the result between the markers of this page")
    return parser.parse_args(arguments)


def start(model: Path, folder: Path, max_streams: int, stack: ExitStack) -> tuple[Server, Program]:
    """The router on the instant shard. Returns: both, ready. Raises LoadError."""
    socket = folder / "shard-0"
    shard = Program(
        "the instant shard",
        [
            sys.executable, "-m", "benchmarks.router.instant_shard", "--socket", str(socket),
            "--tokenizer", str(model / "tokenizer.json"),
        ],
        {},
    )  # fmt: skip
    stack.enter_context(stopping(shard))
    port = free_port()
    command = [
        sys.executable, "-m", "text_generation_router", "--model-folder", str(model), "--hostname", "127.0.0.1",
        "--port", str(port), "--master-shard-uds-path", str(socket), "--max-concurrent-requests", str(2 * max_streams),
        "--max-batch-size", str(2 * max_streams), "--max-batch-prefill-tokens", "4096",
    ]  # fmt: skip
    while not socket.exists():
        if shard.process.poll() is not None:
            raise LoadError(f"the instant shard did not start:\n{shard.log_end()}")
        time.sleep(0.05)
    router = Program("the router", command, {})
    stack.enter_context(stopping(router))
    server = Server(router, Target(f"http://127.0.0.1:{port}"))
    server.wait_ready()
    return server, shard


def measure(server: Server, shard: Program, api: Api, taken: Sequence[Prompt], new_tokens: int) -> Cost:
    target = Target(server.target.url, api, "tgi", endless=False)
    before = server.program.cpu_s("text_generation_router"), shard.cpu_s("instant_shard")
    run = run_load(target, taken, new_tokens)
    router_s = server.program.cpu_s("text_generation_router") - before[0]
    shard_s = shard.cpu_s("instant_shard") - before[1]
    return Cost(run.decode_rate() or run.total_rate(), 1e6 * router_s / run.num_tokens, 1e6 * shard_s / run.num_tokens)


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    check_page(options.write, NAME)
    lines = [
        "| route | streams | events/s | router, us of processor a token | the shard's share, us |",
        "|---|---:|---:|---:|---:|",
    ]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tgs-")))
        model = options.model or demo_model_folder()
        load_before = load_average()
        server, shard = start(model, folder, max(options.streams), stack)
        prompts = PromptSource(model / "tokenizer.json", seed=time.time_ns())
        kinds: list[tuple[Api, int]] = [(api, streams) for api in ROUTES for streams in options.streams]
        measure(server, shard, "tgi", prompts.take(min(options.streams), 16), 16)
        costs: dict[tuple[Api, int], list[Cost]] = {kind: [] for kind in kinds}
        for number in range(options.rounds):
            for api, streams in kinds:
                taken = prompts.take(streams, 16)
                costs[api, streams].append(measure(server, shard, api, taken, options.tokens // streams))
                print(f"round {number + 1}: {ROUTES[api]}, {streams} streams", file=sys.stderr, flush=True)
    for (api, streams), found in costs.items():
        lines.append(
            f"| {ROUTES[api]} | {streams} | {median(cost.events_per_s for cost in found):.0f} | "
            f"{median(cost.router_us for cost in found):.1f} | {median(cost.shard_us for cost in found):.1f} |"
        )
    text = f"{heading(None, (load_before, load_average()))} Medians of {options.rounds} rounds.\n\n" + "\n".join(lines)
    publish(options.write, NAME, text + "\n")
    return 0


if __name__ == "__main__":
    run_benchmark(main)
