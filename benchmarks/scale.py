"""How costs grow: of a step with its rows and their contexts, of planning with the queue: `python -m benchmarks.scale`.

Kernels by themselves and the scheduler by itself, in this process. Flat where theory says so: the cost of a row falls
with the batch until arithmetic bounds it, a cached token costs the same at any context, and planning does not see how
long the queue is. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import torch

from benchmarks.machine import load_average
from benchmarks.report import NoPlace, check_page, heading, plot_folder, plot_lines, publish
from benchmarks.roofline.phases import ATTENTION, BLOCK_SIZE, Shape, StepPhases, medians
from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.native.library import LibraryUnavailable
from text_generation_proto import generate_pb2 as pb
from text_generation_router.scheduling.blocks import BlockPool
from text_generation_router.scheduling.request import Request
from text_generation_router.scheduling.scheduler import Scheduler, SchedulerConfig
from text_generation_router.wire import decode_result
from text_generation_server.download.demo_model import demo_model_folder
from text_generation_server.models.loading import load_model
from text_generation_server.parallel import LoneRank

NAME = "benchmarks.scale"
_BATCH_CONTEXT = 192
_CONTEXT_ROWS = 4
_PROMPT_TOKENS = 130
_LONG_PROMPT = 100_000


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=NAME, description=__doc__)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64], metavar="N")
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 512, 1024, 2048, 4096, 8192], metavar="N")
    parser.add_argument("--queues", type=int, nargs="+", default=[0, 100, 1000, 10000], metavar="N")
    parser.add_argument("--running", type=int, default=256, help="sequences that run while the queue waits")
    parser.add_argument("--seconds", type=float, default=25.0, help="for each table of kernels")
    parser.add_argument("--model", type=Path, help="model folder; default: the demo model")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the result between the markers of this page")
    return parser.parse_args(arguments)


@torch.inference_mode()
def load_phases(model: Path, num_threads: int, num_blocks: int, max_rows: int) -> StepPhases:
    torch.set_num_threads(num_threads)
    return StepPhases(load_model(model, CpuDevice(None, native=True), LoneRank()), num_blocks, max_rows)


@torch.inference_mode()
def time_batches(phases: StepPhases, batches: Sequence[int], seconds: float) -> dict[int, float]:
    """Seconds of a decode step by its rows; all sizes take turns."""
    runs = {str(rows): partial(phases.run_kernels, phases.inputs(Shape("", rows, _BATCH_CONTEXT))) for rows in batches}
    return {int(rows): took_s for rows, took_s in medians(runs, seconds).items()}


@torch.inference_mode()
def time_contexts(phases: StepPhases, contexts: Sequence[int], seconds: float) -> dict[int, tuple[float, float]]:
    """Seconds of a decode step by its rows' context, and of its attention alone."""
    runs: dict[str, Callable[[], object]] = {}
    for context in contexts:
        inputs = phases.inputs(Shape("", _CONTEXT_ROWS, context))
        runs[f"{context} whole"] = partial(phases.run_kernels, inputs)
        runs[f"{context} attention"] = phases.phase_runs(inputs)[ATTENTION]
    times_s = medians(runs, seconds)
    return {context: (times_s[f"{context} whole"], times_s[f"{context} attention"]) for context in contexts}


def time_planning(num_running: int, num_waiting: int, num_steps: int = 50) -> float:
    """Median seconds to plan a step and to take in its answer, so many sequences running and waiting."""
    blocks = -(-(_PROMPT_TOKENS + 2 * num_steps + 8) // BLOCK_SIZE)
    config = SchedulerConfig(max_step_tokens=num_running * _PROMPT_TOKENS, max_sequences=num_running)
    scheduler = Scheduler(config, BlockPool(2 * num_running * blocks, BLOCK_SIZE))
    for index in range(num_running + num_waiting):
        prompt = tuple((index * 131 + position) % 49152 for position in range(_PROMPT_TOKENS))
        scheduler.submit(Request(prompt, max_new_tokens=2 * num_steps))
    times_s = []
    for step in range(num_steps + 1):
        began_s = time.perf_counter()
        plan = scheduler.plan()
        assert plan is not None
        planned_s = time.perf_counter() - began_s
        count = len(plan.rows)
        result = decode_result(pb.StepResponse(step_id=plan.step_id, token_ids=[5] * count, logprobs=[-1.0] * count))
        began_s = time.perf_counter()
        scheduler.complete(result)
        if step:  # the first one admits them all
            times_s.append(planned_s + time.perf_counter() - began_s)
    return median(times_s)


def time_admission(num_tokens: int, rounds: int = 5) -> float:
    """Median seconds to submit and plan a prompt of so many tokens that is cached but for its last ones."""
    num_blocks = 2 * num_tokens // BLOCK_SIZE + 64
    scheduler = Scheduler(
        SchedulerConfig(max_step_tokens=num_tokens, max_sequences=4), BlockPool(num_blocks, BLOCK_SIZE)
    )
    prompt = tuple(position * 31 % 49152 for position in range(num_tokens))
    times_s = []
    for _ in range(rounds + 1):
        request = Request(prompt, max_new_tokens=1)
        began_s = time.perf_counter()
        scheduler.submit(request)
        plan = scheduler.plan()
        times_s.append(time.perf_counter() - began_s)
        assert plan is not None
        scheduler.complete(decode_result(pb.StepResponse(step_id=plan.step_id, token_ids=[5], logprobs=[-1.0])))
    return median(times_s[1:])  # the first one filled the cache


def batch_table(times_s: dict[int, float]) -> str:
    lines = ["| rows | step, ms | us a token | times one row's |", "|---:|---:|---:|---:|"]
    first = min(times_s)
    for rows, took_s in times_s.items():
        relative = took_s / rows / (times_s[first] / first)
        lines.append(f"| {rows} | {1000 * took_s:.2f} | {1e6 * took_s / rows:.0f} | {relative:.2f} |")
    return "\n".join(lines)


def context_table(times_s: dict[int, tuple[float, float]]) -> str:
    lines = ["| context | step, ms | attention, ms | ns a row and cached token |", "|---:|---:|---:|---:|"]
    for context, (whole_s, attention_s) in times_s.items():
        each = 1e9 * attention_s / _CONTEXT_ROWS / context
        lines.append(f"| {context} | {1000 * whole_s:.2f} | {1000 * attention_s:.2f} | {each:.0f} |")
    return "\n".join(lines)


def draw(
    folder: Path, batches: Mapping[int, float], contexts: Mapping[int, tuple[float, float]], queues: Mapping[int, float]
) -> str:
    """Returns: Markdown that shows the plots."""
    by_batch = [(rows, 1e6 * took_s / rows) for rows, took_s in batches.items()]
    by_context = [(context, 1e9 * took_s / _CONTEXT_ROWS / context) for context, (_, took_s) in contexts.items()]
    by_queue = [(max(waiting, 1), 1000 * took_s) for waiting, took_s in queues.items()]
    plots = [
        plot_lines(
            folder / "batch.svg", "A decode step by rows", ("rows", "us a token"), {"step": by_batch}, log_y=True
        ),
        plot_lines(
            folder / "context.svg", "Attention by context", ("context", "ns a cached token"), {"attention": by_context}
        ),
        plot_lines(folder / "queue.svg", "Planning by queue", ("waiting", "ms a step"), {"plan and answer": by_queue}),
    ]
    return "\n" + "\n".join(plots) + "\n"


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    check_page(options.write, NAME)
    load_before = load_average()
    most_tokens = max(_CONTEXT_ROWS * max(options.contexts), max(options.batches) * _BATCH_CONTEXT)
    rows = max(_CONTEXT_ROWS, *options.batches)
    phases = load_phases(options.model or demo_model_folder(), options.threads, most_tokens // BLOCK_SIZE + 1, rows)
    batches = time_batches(phases, options.batches, options.seconds)
    contexts = time_contexts(phases, options.contexts, options.seconds)
    queues = {waiting: time_planning(options.running, waiting) for waiting in options.queues}
    admission_s = time_admission(_LONG_PROMPT)
    queue_lines = ["| waiting | a step's plan and answer, ms |", "|---:|---:|"]
    queue_lines += [f"| {waiting} | {1000 * took_s:.2f} |" for waiting, took_s in queues.items()]
    text = (
        f"{heading(None, (load_before, load_average()))} bf16 weights, {options.threads} threads.\n\n"
        f"A decode step's kernels, every row at context {_BATCH_CONTEXT}:\n\n{batch_table(batches)}\n\n"
        f"The same with {_CONTEXT_ROWS} rows, by context:\n\n{context_table(contexts)}\n\n"
        f"The scheduler with {options.running} running sequences of {_PROMPT_TOKENS} tokens:\n\n"
        + "\n".join(queue_lines)
        + f"\n\nA prompt of {_LONG_PROMPT:,} tokens whose beginning is cached is hashed, found and planned in "
        f"{1000 * admission_s:.1f} ms.\n"
    )
    if options.write:
        text += draw(plot_folder(options.write), batches, contexts, queues)
    publish(options.write, NAME, text)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (NoPlace, LibraryUnavailable) as error:
        sys.exit(f"error: {error}")
