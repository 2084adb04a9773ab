"""Our server beside its peers, the same work in the same run: `python -m benchmarks.peers`.

Each peer is installed in an environment of its own the first time; one that cannot be is named with the reason, and the
rest goes on. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.machine import load_average
from benchmarks.model_folder import write_endless_model
from benchmarks.peers.contenders import CONTENDERS, HELD_TO, Machine, prepare
from benchmarks.peers.measuring import Results, Work, measure, warm_up
from benchmarks.peers.tables import PREFILL, columns, common_prefix, full_table, ratio_table, value, work_name
from benchmarks.programs import Server, Worker, run_benchmark, stopping
from benchmarks.prompts import Prompt, PromptSource
from benchmarks.report import check_page, heading, plot_bars, plot_folder, publish
from benchmarks.streams import LoadError
from text_generation_server.download.demo_model import demo_model_folder

NAME = "benchmarks.peers"
# The demo model answers this with the name of a city in every precision; a peer that does not computes something else.
QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
ANSWER = "Paris"
CONTINUED, CONTINUED_TOKENS = "The three laws of motion are", 48


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=NAME, description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, metavar="NAME", help=f"of: {', '.join(CONTENDERS)}")
    parser.add_argument("--isa", choices=HELD_TO, help="hold all to this instruction set, where they allow it")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3, help="at most; the time may allow fewer")
    parser.add_argument("--minutes", type=float, default=6.0, help="for measuring, after all have started")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32], metavar="N")
    parser.add_argument("--prompt-tokens", type=int, default=130)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--prefill-tokens", type=int, default=512, help="length of the prompt that is timed alone")
    parser.add_argument("--model", type=Path, help="model folder, without GGUF peers; default: the demo model")
    parser.add_argument(
        "--prepare", action="store_true", help="install and convert what is missing, and measure nothing"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the result between the markers of this page")
    return parser.parse_args(arguments)


def start(
    names: Sequence[str], machine: Machine, stack: ExitStack
) -> tuple[dict[str, Server | Worker], dict[str, str]]:
    """Start one after the other, since two that compute at once stall each other, and freeze each when it is ready.

    Returns: those, and of the others why not.
    """
    running: dict[str, Server | Worker] = {}
    failed: dict[str, str] = {}
    for name in names:
        began_s = time.perf_counter()
        contender = CONTENDERS[name].start(machine)
        stack.enter_context(stopping(contender.program))
        try:
            contender.wait_ready()
            contender.program.freeze()
            running[name] = contender
        except LoadError as error:
            failed[name] = str(error)
            contender.program.stop()
        outcome = "did not start" if name in failed else "ready"
        print(f"{name}: {outcome} in {time.perf_counter() - began_s:.0f} s", file=sys.stderr, flush=True)
    return running, failed


def check_texts(
    running: Mapping[str, Server | Worker], tokenizer: Tokenizer, expected: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Ask everyone the same.

    Returns: of each, what its greedy text has in common with the reference's, the first float32 there is, else the
    first; and of those whose text is not sane, what it was.
    """
    continued: dict[str, str] = {}
    insane: dict[str, str] = {}
    for name, contender in running.items():
        contender.program.thaw()
        try:
            answer = _text(contender, tokenizer, QUESTION, 12)
            continued[name] = _text(contender, tokenizer, CONTINUED, CONTINUED_TOKENS)
        except LoadError as error:
            insane[name] = str(error)
            continue
        finally:
            contender.program.freeze()
        if expected not in answer:
            insane[name] = f"it answers {answer!r} to a question whose answer is {expected}"
    reference = next(
        (name for name in ("transformers-float32", "float32", "bf16") if name in continued), next(iter(continued), "")
    )
    texts = {}
    for name, text in continued.items():
        same = common_prefix(text, continued[reference])
        whole = same == len(continued[reference])
        texts[name] = "reference" if name == reference else "the same" if whole else f"differs after {same} characters"
    return texts, insane


def _text(contender: Server | Worker, tokenizer: Tokenizer, text: str, num_tokens: int) -> str:
    run = contender.run([Prompt(text, tokenizer.encode(text, add_special_tokens=False).ids)], num_tokens)
    return run.texts[0] if run.texts else tokenizer.decode(run.token_ids[0], skip_special_tokens=True)


def report(
    options: argparse.Namespace,
    results: Results,
    texts: Mapping[str, str],
    left_out: Mapping[str, str],
    loads: tuple[float, float],
) -> str:
    names = [name for name in options.only if any(key[0] == name for key in results.runs)]
    shown = columns(options.streams, options.prompt_tokens, options.prefill_tokens)
    counts = [len(runs) for runs in results.runs.values()]
    lines = [
        f"{heading(options.isa, loads)} {options.threads} threads; prompts of {options.prompt_tokens} tokens, "
        f"{options.new_tokens} new ones, greedy; rates in tokens per second of all streams together, medians of "
        f"{min(counts)} to {max(counts)} rounds.",
        "",
        full_table(names, shown, results, texts),
        "",
        ratio_table(names, shown, results),
    ]
    if options.isa and (free := [CONTENDERS[name].label for name in names if not CONTENDERS[name].obeys_isa]):
        lines += [
            "",
            f"Held to {options.isa} only in oneDNN's products, the rest chooses by itself: {', '.join(free)}.",
        ]
    lines += [""] if left_out else []
    lines += [f"- {CONTENDERS[name].label} is left out: {_one_line(reason)}" for name, reason in left_out.items()]
    return "\n".join(lines) + "\n"


def _one_line(reason: str) -> str:
    """What happened, and of a log after it the last line that speaks of an error."""
    first, *log = [line.strip() for line in reason.splitlines() if line.strip()] or ["no reason given"]
    told = [line for line in log if "error" in line.lower()] or log
    return f"{first} {told[-1]}"[:300] if told else first


def draw(options: argparse.Namespace, results: Results) -> str:
    """Returns: Markdown that shows the plot."""
    shown = columns(options.streams, options.prompt_tokens, options.prefill_tokens)[: len(options.streams)]
    bars = {
        CONTENDERS[name].label: [value(results, name, column) for column in shown]
        for name in options.only
        if any(key[0] == name for key in results.runs)
    }
    suffix = f"-{options.isa}" if options.isa else ""
    path = plot_folder(options.write) / f"peers{suffix}.svg"
    return plot_bars(path, "Decode, tokens per second of all streams", [work_name(n) for n in options.streams], bars)


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    options.only = options.only or list(CONTENDERS)
    place = f"{NAME}{f' {options.isa}' if options.isa else ''}"
    check_page(options.write, place)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tgs-")))
        model = options.model or demo_model_folder()
        endless = write_endless_model(model, folder / "model")
        machine = Machine(model, endless, options.threads, options.isa, folder)
        ready, left_out = prepare(options.only, machine)
        if options.prepare:
            for name in options.only:
                print(f"{name}: {left_out.get(name, 'ready')}")
            return 0
        load_before = load_average()
        running, failed = start(ready, machine, stack)
        left_out |= failed
        source = PromptSource(model / "tokenizer.json", seed=time.time_ns())
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        left_out |= warm_up(running, source, options.prefill_tokens).failures
        texts, insane = check_texts(running, tokenizer, "" if options.model else ANSWER)
        left_out |= insane
        running = {name: contender for name, contender in running.items() if name not in left_out}
        works = [Work(PREFILL, 1, options.prefill_tokens, 1)]
        works += [Work(work_name(n), n, options.prompt_tokens, options.new_tokens) for n in options.streams]
        results = measure(running, works, source, options.rounds, 60 * options.minutes)
        left_out |= results.failures
    text = report(options, results, texts, left_out, (load_before, load_average()))
    if options.write:
        text += f"\n{draw(options, results)}\n"
    publish(options.write, place, text)
    return 0


if __name__ == "__main__":
    run_benchmark(main)
