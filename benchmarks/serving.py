"""How fast the server is over HTTP, beside `transformers` on the same weights: `make bench`.

Rounds interleave all variants, so that a slow minute of a shared machine slows all of them, and medians are shown.
Prints a Markdown table; writes nothing unless told where.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.load import LoadError
from benchmarks.machine import load_average, machine_line
from benchmarks.model_folder import write_endless_model
from benchmarks.programs import Peer, run_load, serving, transformers_peer
from benchmarks.prompts import Prompt, PromptSource
from benchmarks.rates import Run
from text_generation_server.download.demo_model import demo_model_folder

TABLE_BEGINS, TABLE_ENDS = "<!-- benchmarks/serving.py: begin -->", "<!-- benchmarks/serving.py: end -->"

Contender = Callable[[Sequence[Prompt], int], Run]
Runs = dict[tuple[str, int], list[Run]]

SERVER, PEER = "this server", "transformers"
_PREFILL = 0  # in `Runs`, where others have their number of streams


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.serving", description=__doc__)
    parser.add_argument("--model", type=Path, help="model folder; default: the demo model")
    parser.add_argument("--url", help="measure this server instead of starting one; it must serve the same model")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32], metavar="N")
    parser.add_argument("--rounds", type=int, default=3, help="times that each variant is run")
    parser.add_argument("--prompt-tokens", type=int, default=130)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--prefill-tokens", type=int, default=512, help="length of the prompt that is timed alone")
    parser.add_argument("--no-peer", action="store_true", help="leave transformers out")
    parser.add_argument("--peer-rounds", type=int, default=1, help="in how many of the rounds transformers runs")
    parser.add_argument("--peer-new-tokens", type=int, default=32, help="it is slower, so it need not run as long")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the result between the markers of this file")
    parser.add_argument("launcher_options", nargs="*", help="after --: options for text-generation-launcher")
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace, server: Contender, peer: Contender | None, prompts: PromptSource) -> Runs:
    """All rounds, every prompt used once. Says on stderr what it does."""
    runs: Runs = defaultdict(list)
    server(prompts.take(1, options.prompt_tokens), 8)
    for round_index in range(options.rounds):
        contenders = [(SERVER, server, options.new_tokens)]
        if peer and round_index < options.peer_rounds:
            contenders.append((PEER, peer, options.peer_new_tokens))
        for streams in (_PREFILL, *options.streams):
            for name, contender, new_tokens in contenders:
                start_s = time.perf_counter()
                if streams == _PREFILL:
                    run = contender(prompts.take(1, options.prefill_tokens), 1)
                else:
                    run = contender(prompts.take(streams, options.prompt_tokens), new_tokens)
                runs[name, streams].append(run)
                what = f"{streams} streams" if streams else f"prefill of {options.prefill_tokens}"
                took_s = time.perf_counter() - start_s
                print(f"round {round_index + 1}: {name}, {what}: {took_s:.1f} s", file=sys.stderr, flush=True)
    return runs


def table(runs: Runs, options: argparse.Namespace) -> str:
    """The rates as a Markdown table, and the prefill as a sentence."""
    lines = [
        "| streams | decode, tok/s | with prompts, tok/s | first token, ms "
        "| transformers: decode | with prompts | decode, times transformers |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for streams in options.streams:
        server, peer = runs[SERVER, streams], runs.get((PEER, streams), [])
        cells = [
            str(streams),
            _rate(_decode(server)),
            _rate(_total(server)),
            f"{1000 * _first_token_s(server):.0f}",
            _rate(_decode(peer)),
            _rate(_total(peer)),
            _ratio(_decode(server), _decode(peer)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    seconds = {name: _first_token_s(runs[name, _PREFILL]) for name in (SERVER, PEER) if runs.get((name, _PREFILL))}
    prefills = [f"{name} {1000 * s:.0f} ms ({options.prefill_tokens / s:.0f} tok/s)" for name, s in seconds.items()]
    return "\n".join([*lines, "", f"Prefill of {options.prefill_tokens} tokens: {', '.join(prefills)}."])


def _decode(runs: Sequence[Run]) -> float | None:
    rates = [rate for run in runs if (rate := run.decode_rate()) is not None]
    return median(rates) if rates else None


def _total(runs: Sequence[Run]) -> float | None:
    return median(run.total_rate() for run in runs) if runs else None


def _first_token_s(runs: Sequence[Run]) -> float:
    return median(run.first_token_s() for run in runs)


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f}"


def _ratio(ours: float | None, theirs: float | None) -> str:
    return f"{ours / theirs:.1f}" if ours and theirs else "-"


def report(runs: Runs, options: argparse.Namespace, loads: tuple[float, float]) -> str:
    date = datetime.datetime.now(datetime.timezone.utc).date()
    server_tokens = sum(run.num_tokens for streams in options.streams for run in runs[SERVER, streams])
    wanted = sum(options.streams) * options.rounds * options.new_tokens
    short = f" Texts ended early: {server_tokens} tokens of {wanted}." if server_tokens < wanted else ""
    return (
        f"{date}, {machine_line()}; load average {loads[0]:.1f} before, {loads[1]:.1f} after. Prompts of "
        f"{options.prompt_tokens} tokens, {options.new_tokens} new ones, greedy; median of {options.rounds} round(s)"
        f"{f', transformers of {options.peer_rounds}' if not options.no_peer else ''}.{short}\n\n"
        f"{table(runs, options)}\n"
    )


def around_table(path: Path) -> tuple[str, str]:
    """What stands before and after the table in a file, markers included. Raises LoadError if it has no markers."""
    text = path.read_text() if path.is_file() else ""
    before, begins, rest = text.partition(TABLE_BEGINS)
    _, ends, after = rest.partition(TABLE_ENDS)
    if not (begins and ends):
        raise LoadError(f"{path} has no lines {TABLE_BEGINS} and {TABLE_ENDS} to write between")
    return before + begins, ends + after


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    if options.write:
        around_table(options.write)  # before minutes of measuring
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = write_endless_model(options.model or demo_model_folder(), folder / "model")
        url = options.url or stack.enter_context(serving(model, options.launcher_options))
        peer: Peer | None = None if options.no_peer else stack.enter_context(transformers_peer(model))
        load_before = load_average()
        prompts = PromptSource(model / "tokenizer.json", seed=time.time_ns())
        runs = measure(
            options, lambda taken, new: run_load(url, taken, new), peer.run if peer is not None else None, prompts
        )
    text = report(runs, options, (load_before, load_average()))
    print(text)
    if options.write:
        before, after = around_table(options.write)  # again: it may have been edited meanwhile
        options.write.write_text(f"{before}\n{text}{after}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except LoadError as error:
        sys.exit(f"error: {error}")
