"""How near the server comes to what its machine can do, and where the rest goes: `python -m benchmarks.roofline`.

In one run: the machine's limits, the server over HTTP, and the kernels of the same steps replayed alone, taken apart by
phase. The server is frozen while kernels are replayed. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, median

import torch

from benchmarks.machine import load_average
from benchmarks.model_folder import write_endless_model
from benchmarks.programs import Server, launch, run_benchmark, stopping
from benchmarks.prompts import PromptSource
from benchmarks.report import check_page, heading, publish
from benchmarks.roofline.limits import Limits, NoLimits, measure_limits
from benchmarks.roofline.phases import ATTENTION, LINEARS, PHASES, Amount, Shape, StepPhases, contexts, medians
from benchmarks.streams import LoadError
from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.native.library import INSTRUCTION_SET_VARIABLE, LibraryUnavailable
from text_generation_server.download.demo_model import demo_model_folder
from text_generation_server.models.loading import load_model
from text_generation_server.parallel import LoneRank

NAME = "benchmarks.roofline"
WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "bf16": (),
    "int8": ("--quantize", "w8a16"),
    "float32": ("--dtype", "float32"),
}
_CONTEXTS = 4  # at which a run's steps are replayed
_CACHE_TOKENS = 20480


@dataclass(frozen=True)
class Timed:
    """Seconds of one kind of step: over HTTP and its kernels alone, medians of rounds; and of its phases alone."""

    shape: Shape
    wall_s: float
    kernels_s: float
    phases_s: Mapping[str, float]
    amounts: Mapping[str, Amount]


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=NAME, description=__doc__)
    parser.add_argument("--weights", choices=WEIGHTS, default="bf16")
    parser.add_argument("--isa", help="instruction set to use instead of the best")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32], metavar="N")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=130)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--prefill-tokens", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each replay of a phase table's column")
    parser.add_argument("--model", type=Path, help="model folder; default: the demo model")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the result between the markers of this page")
    return parser.parse_args(arguments)


def load_phases(options: argparse.Namespace, folder: Path) -> StepPhases:
    """The model as the server has it. Raises LibraryUnavailable without native kernels."""
    torch.set_num_threads(options.threads)
    quantize = "w8a16" if options.weights == "int8" else None
    device = CpuDevice(None, quantize, native=True)
    dtype = torch.float32 if options.weights == "float32" else None
    model = load_model(folder, device, LoneRank(), dtype=dtype)
    with torch.inference_mode():
        return StepPhases(model, _CACHE_TOKENS // 16, max(*options.streams, 3))


def replay(phases: StepPhases, shape: Shape, last_context: int, seconds: float) -> float:
    """The kernels of steps like this one as contexts grow to the last: seconds of one step on average."""
    count = 1 if shape.context == last_context else _CONTEXTS
    steps = [replace(shape, context=context) for context in contexts(shape.context, last_context, count)]
    runs = {str(step.context): partial(phases.run_kernels, phases.inputs(step)) for step in steps}
    return mean(medians(runs, seconds).values())


@torch.inference_mode()
def measure(options: argparse.Namespace, server: Server, phases: StepPhases, prompts: PromptSource) -> list[Timed]:
    """Rounds of the server and of the same steps' kernels, in turns. The server is frozen before and after."""
    prompt, last = options.prompt_tokens, options.prompt_tokens + options.new_tokens
    shapes = {
        **{Shape(f"c={streams}", streams, prompt + 1): last for streams in options.streams},
        Shape(f"prefill {options.prefill_tokens}", 1, options.prefill_tokens, options.prefill_tokens): None,
    }
    wall_s: dict[Shape, list[float]] = defaultdict(list)
    kernels_s: dict[Shape, list[float]] = defaultdict(list)
    for number in range(options.rounds):
        for shape, last_context in shapes.items():
            server.program.thaw()
            if last_context is None:
                took_s = server.run(prompts.take(1, shape.new_tokens), 1).first_token_s()
            else:
                run = server.run(prompts.take(shape.num_rows, prompt), options.new_tokens)
                rate = run.decode_rate()
                if rate is None:
                    raise LoadError(f"{shape.name}: the streams never ran together; use more --new-tokens")
                took_s = shape.num_rows / rate
            server.program.freeze()
            wall_s[shape].append(took_s)
            kernels_s[shape].append(replay(phases, shape, last_context or shape.context, options.seconds / 4))
            print(
                f"round {number + 1}: {shape.name}: {1000 * took_s:.1f} ms over HTTP, "
                f"{1000 * kernels_s[shape][-1]:.1f} ms of kernels",
                file=sys.stderr,
                flush=True,
            )
    timed = []
    for shape, last_context in shapes.items():
        middle = replace(shape, context=(shape.context + (last_context or shape.context)) // 2)
        times_s = medians(phases.phase_runs(phases.inputs(middle)), options.seconds)
        timed.append(Timed(middle, median(wall_s[shape]), median(kernels_s[shape]), times_s, phases.amounts(middle)))
    return timed


def arithmetic_of(isa: str, phase: str, weights: str) -> str:
    """The instruction set that does a phase's sums: AMX multiplies no float32 weights."""
    return "avx512" if isa == "amx" and phase != ATTENTION and weights == "float32" else isa


def step_table(timed: Sequence[Timed], limits: Limits, isa: str, weights: str) -> str:
    """Whole steps: over HTTP, their kernels alone, what is not kernels, and the machine's limit."""
    lines = [
        "| step | over HTTP, ms | kernels alone, ms | not kernels | limit, ms | of it over HTTP | of it kernels |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in timed:
        least_s = max(
            limits.seconds(sum(amount.num_bytes for amount in one.amounts.values()), 0, isa),
            sum(
                limits.seconds(0, amount.operations, arithmetic_of(isa, phase, weights))
                for phase, amount in one.amounts.items()
            ),
        )
        lines.append(
            f"| {one.shape.name} | {1000 * one.wall_s:.2f} | {1000 * one.kernels_s:.2f} | "
            f"{1 - one.kernels_s / one.wall_s:.0%} | {1000 * least_s:.2f} | {least_s / one.wall_s:.0%} | "
            f"{least_s / one.kernels_s:.0%} |"
        )
    return "\n".join(lines)


def phase_table(timed: Sequence[Timed], limits: Limits, isa: str, weights: str) -> str:
    """Each phase replayed alone: its time, and in brackets the fraction of the limit, where memory or sums bound it."""
    lines = [
        "| phase, ms | " + " | ".join(one.shape.name for one in timed) + " |",
        "|---|" + "---:|" * len(timed),
    ]
    for phase in PHASES:
        cells = []
        for one in timed:
            took_s = one.phases_s.get(phase)
            amount = one.amounts.get(phase)
            if took_s is None:
                cells.append("-")
            elif amount is None:
                cells.append(f"{1000 * took_s:.2f}")
            else:
                own = arithmetic_of(isa, phase, weights)
                fraction = limits.seconds(amount.num_bytes, amount.operations, own) / took_s
                cells.append(f"{1000 * took_s:.2f} ({fraction:.0%})")
        lines.append(f"| {phase} | {' | '.join(cells)} |")
    return "\n".join(lines)


def limits_line(limits: Limits, isa: str, weights: str) -> str:
    flops = ", ".join(f"{name} {value / 1e9:.0f}" for name, value in limits.flops.items())
    linears, attention = (arithmetic_of(isa, phase, weights) for phase in (LINEARS, ATTENTION))
    apart = f", that of attention against {limits.flops_of(attention) / 1e9:.0f}" if attention != linears else ""
    return (
        f"Measured limits: {limits.bytes_per_s / 1e9:.1f} GB/s, reading as many bytes as the weights over and over; "
        f"GFLOPS {flops}. The kernels used {isa}, so their arithmetic is held against "
        f"{limits.flops_of(linears) / 1e9:.0f}{apart}."
    )


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    place = f"{NAME} {options.weights}{f' {options.isa}' if options.isa else ''}"
    check_page(options.write, place)
    environ = {"OMP_NUM_THREADS": str(options.threads)}
    if options.isa:
        environ[INSTRUCTION_SET_VARIABLE] = options.isa
    os.environ.update(environ)  # the replay is to compute as the server does
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tgs-")))
        model = write_endless_model(options.model or demo_model_folder(), folder / "model")
        load_before = load_average()
        launcher_options = ["--max-batch-total-tokens", str(_CACHE_TOKENS), *WEIGHTS[options.weights]]
        server = launch("this server", model, launcher_options, environ, folder)
        stack.enter_context(stopping(server.program))
        server.wait_ready()
        prompts = PromptSource(model / "tokenizer.json", seed=time.time_ns())
        server.run(prompts.take(1, options.prefill_tokens), 8)
        server.program.freeze()
        phases = load_phases(options, model)
        limits = measure_limits(options.threads, 1.5, phases.weight_bytes)
        timed = measure(options, server, phases, prompts)
    isa = phases.instruction_set
    text = (
        f"{heading(options.isa, (load_before, load_average()))} {options.weights} weights, {options.threads} threads, "
        f"prompts of {options.prompt_tokens} tokens and {options.new_tokens} new ones, medians of {options.rounds} "
        f"rounds. {limits_line(limits, isa, options.weights)}\n\n"
        f"{step_table(timed, limits, isa, options.weights)}\n\n{phase_table(timed, limits, isa, options.weights)}\n"
    )
    publish(options.write, place, text)
    return 0


if __name__ == "__main__":
    run_benchmark(main, NoLimits, LibraryUnavailable)
