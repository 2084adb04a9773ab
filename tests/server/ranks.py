"""Starts the processes of a group for tests, and what they say there. Imports no transformers: ranks start fast."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.interface import StepInputs
from text_generation_kernels.native.capture import example
from text_generation_server.models.loading import load_model
from text_generation_server.parallel import join_group
from text_generation_server.sharding import split


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def spawn_ranks(target: Callable[..., None], world_size: int, *args: Any) -> None:
    """Run target(rank, world_size, port, *args) in `world_size` fresh processes; fail unless each exits with 0."""
    context, port = multiprocessing.get_context("spawn"), free_port()
    processes = [context.Process(target=target, args=(r, world_size, port, *args)) for r in range(world_size)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(timeout=120)
        assert [process.exitcode for process in processes] == [0] * world_size
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


def talk(rank: int, world_size: int, port: int, folder: str) -> None:
    """Make every collective call once and save the answers as {rank}.pt."""
    torch.set_num_threads(1)
    group = join_group(CpuDevice(), rank, world_size, master_addr="127.0.0.1", master_port=port, timeout_s=60)
    width = len(split(259, rank, world_size))
    row = torch.randn(7, generator=torch.Generator().manual_seed(rank))
    answers = {
        "sum": group.all_reduce(torch.tensor([float(rank), 1.0])),
        "rows": group.all_reduce(row.repeat(1000, 1)),
        "logits": group.gather_logits(torch.full((2, width), float(rank)), 259),
        "ids": group.broadcast_ids(torch.tensor([11, 12, 13]) if rank == 0 else None, 3),
        "min": group.all_reduce_min(5 + rank),
    }
    torch.save(answers, Path(folder) / f"{rank}.pt")
    group.close()


def replay(rank: int, world_size: int, port: int, checkpoint: str, folder: str) -> None:
    """Run steps of a model op by op and captured; save both ways' logits as {rank}.pt."""
    torch.set_num_threads(1)
    device = CpuDevice(native=True)
    group = join_group(device, rank, world_size, master_addr="127.0.0.1", master_port=port, timeout_s=60)
    model = load_model(Path(checkpoint), device, group, on_progress=lambda done, total: None)
    caches = [device.ops.new_kv_cache(1, 16, model.num_kv_heads_local, model.head_dim) for _ in model.layers]

    def step(inputs: StepInputs) -> torch.Tensor:
        return model.sampled_logits(inputs, caches)

    steps = [example((5,), sampled=(4,)), example((2, 1, 3), sampled=(1, 2, 4)), example((16,), sampled=(0,))]
    with torch.inference_mode():
        captured = device.capture(step, max_tokens=16, max_sampled=4, max_blocks=1)
        answers = [
            tuple(model.head.gather(logits) for logits in (step(inputs), captured(inputs).clone())) for inputs in steps
        ]
    torch.save(answers, Path(folder) / f"{rank}.pt")
    group.close()
