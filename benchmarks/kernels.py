"""The CPU's native kernels by themselves: linear passes and whole decode steps, against this machine's limits.

Limits are measured in the same run, on the same threads, as benchmarks.roofline does. Variants take turns, and the best
of their times counts, since anything else that runs here can only add to one. Knows no server.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks.machine import load_average, machine_line
from benchmarks.roofline.limits import Limits, measure_limits
from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.interface import Ops, PackedWeight, StepInputs, StepMetadata
from text_generation_kernels.native.library import load_library
from text_generation_kernels.native.ops import NativeCpuOps
from text_generation_server.download import demo_model_folder
from text_generation_server.models.causal_lm import CausalLM
from text_generation_server.models.loading import load_model
from text_generation_server.parallel import LoneRank

ROWS = (1, 4, 8, 12, 32, 128, 512)
BLOCK_SIZE = 16
GROUP = 64  # of int8


def best_seconds(variants: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """The best time of each variant; they take turns for so many seconds in all."""
    best = dict.fromkeys(variants, float("inf"))
    end = time.perf_counter() + seconds
    while True:
        for name, run in variants.items():
            started = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - started)
        if time.perf_counter() > end:
            return best


def least_seconds(limits: Limits, model: str, instruction_set: str, num_bytes: float, operations: float) -> float:
    """What a model of `load_models` needs at least for so much work: AMX does not multiply float32 weights."""
    multiplies = "avx512" if instruction_set == "amx" and model == "f32" else instruction_set
    return limits.seconds(num_bytes, operations, multiplies)


def linear_weights(model: CausalLM) -> list[PackedWeight]:
    """Every linear weight of a step but the head's, in order."""
    return [
        weight
        for layer in model.layers
        for weight in (
            layer.attention.qkv.weight,
            layer.attention.out.weight,
            layer.mlp.gate_up.weight,
            layer.mlp.down.weight,
        )
    ]


def run_linears(ops: Ops, weights: Sequence[PackedWeight], x: Mapping[int, Tensor]) -> None:
    for weight in weights:
        ops.linear(x[weight.in_features], weight)


def report_linears(models: Mapping[str, CausalLM], limits: Limits, instruction_set: str, seconds: float) -> None:
    print("\nOne pass over all linear weights (up to 64 rows with the head): ms, and the share of the limit")
    print("| rows | " + " | ".join(models) + " |")
    print("|---:|" + "---:|" * len(models))
    for rows in ROWS:
        x = {width: torch.randn(rows, width) for width in (576, 1536)}
        variants: dict[str, Callable[[], object]] = {}
        least: dict[str, float] = {}
        for name, model in models.items():
            weights = linear_weights(model) + ([model.head.weight] if rows <= 64 else [])

            variants[name] = partial(run_linears, model.device.ops, weights, x)
            operations = 2 * rows * sum(weight.out_features * weight.in_features for weight in weights)
            least[name] = least_seconds(
                limits, name, instruction_set, sum(weight.nbytes for weight in weights), operations
            )
        best = best_seconds(variants, seconds)
        cells = [
            f"{best[name] * 1e3:.1f}" + (f" ({least[name] / best[name]:.0%})" if name != "torch" else "")
            for name in models
        ]
        print(f"| {rows} | " + " | ".join(cells) + " |", flush=True)


def decode_inputs(num_rows: int, context: int, vocab_size: int) -> StepInputs:
    """A decode step of rows that have `context` tokens each, in blocks of their own."""
    blocks = -(-context // BLOCK_SIZE)
    tables = torch.arange(num_rows * blocks, dtype=torch.int32).view(num_rows, blocks)
    position = context - 1
    step = StepMetadata(
        positions=torch.full((num_rows,), position),
        slot_mapping=tables[:, position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE,
        block_tables=tables,
        cu_seqlens_q=tuple(range(num_rows + 1)),
        kv_lens=(context,) * num_rows,
    )
    return StepInputs(torch.arange(num_rows) * 97 % vocab_size, step, torch.arange(num_rows))


def step_function(model: CausalLM, num_blocks: int) -> Callable[[StepInputs], Tensor]:
    ops = model.device.ops
    caches = [ops.new_kv_cache(num_blocks, BLOCK_SIZE, model.num_kv_heads_local, model.head_dim) for _ in model.layers]

    def step(inputs: StepInputs) -> Tensor:
        logits = model.sampled_logits(inputs, caches)
        assert logits is not None
        return logits

    return step


def report_steps(
    models: Mapping[str, CausalLM], limits: Limits, instruction_set: str, seconds: float, context: int
) -> None:
    print(
        f"\nA decode step at context {context}, embedding to logits: ms (tokens per second), and the share of the limit"
    )
    columns = [f"{name}{how}" for name in models for how in ((" op by op", "") if name != "torch" else (" op by op",))]
    print("| rows | " + " | ".join(columns) + " |")
    print("|---:|" + "---:|" * len(columns))
    for rows in (1, 8, 32):
        inputs = decode_inputs(rows, context, 49152)
        num_blocks = inputs.step.block_tables.numel()
        variants: dict[str, Callable[[], object]] = {}
        least: dict[str, float] = {}
        for name, model in models.items():
            step = step_function(model, num_blocks)
            variants[f"{name} op by op"] = partial(step, inputs)
            if name != "torch":
                captured = model.device.capture(step, 64, 64, 64)
                variants[name] = partial(captured, inputs)
            weights = [*linear_weights(model), model.head.weight]
            num_bytes = sum(weight.nbytes for weight in weights)
            operations = 2 * rows * sum(weight.out_features * weight.in_features for weight in weights)
            least[name] = least[f"{name} op by op"] = least_seconds(
                limits, name, instruction_set, num_bytes, operations
            )
        best = best_seconds(variants, seconds)
        cells = [
            f"{best[name] * 1e3:.1f} ({rows / best[name]:.0f})"
            + (f" {least[name] / best[name]:.0%}" if "torch" not in name else "")
            for name in columns
        ]
        print(f"| {rows} | " + " | ".join(cells) + " |", flush=True)


def load_models(num_threads: int, instruction_set: str | None) -> dict[str, CausalLM]:
    library = load_library()
    instruction_set = instruction_set or library.instruction_sets[0]
    folder = demo_model_folder()

    def native(dtype: torch.dtype, group_size: int | None = None) -> CausalLM:
        device = CpuDevice(native=True)
        device.ops = NativeCpuOps(library, num_threads, instruction_set, torch.bfloat16, group_size)
        return load_model(folder, device, LoneRank(), dtype=dtype)

    return {
        "bf16": native(torch.bfloat16),
        "int8": native(torch.bfloat16, GROUP),
        "f32": native(torch.float32),
        "torch": load_model(folder, CpuDevice(native=False), LoneRank()),
    }


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--instruction-set", default=None)
    parser.add_argument("--seconds", type=float, default=8.0, help="for each row of a table")
    parser.add_argument("--context", type=int, default=192)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    models = load_models(options.threads, options.instruction_set)
    ops = models["bf16"].device.ops
    assert isinstance(ops, NativeCpuOps)
    weight_bytes = sum(weight.nbytes for weight in linear_weights(models["bf16"]))
    limits = measure_limits(options.threads, options.seconds / 4, weight_bytes)
    print(f"{machine_line()}; {ops.description}; load {load_average():.1f}")
    flops = ", ".join(f"{name} {value / 1e9:.0f}" for name, value in limits.flops.items())
    print(f"limits: {limits.bytes_per_s / 1e9:.1f} GB/s; GFLOPS {flops}")
    report_linears(models, limits, ops.team.instruction_set, options.seconds)
    report_steps(models, limits, ops.team.instruction_set, options.seconds, options.context)
    print(f"\nload {load_average():.1f} at the end")


if __name__ == "__main__":
    main()
