"""Drives a model step by step as the engine will: rows in a flat batch, keys and values in scattered blocks.

Imports no transformers, so that spawned ranks start quickly.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.interface import StepMetadata
from text_generation_server.models.causal_lm import CausalLM
from text_generation_server.models.loading import load_model
from text_generation_server.parallel import LoneRank, TensorParallelGroup, join_group

BLOCK_SIZE = 16


@dataclass
class Row:
    """A sequence: where its keys and values lie, and how many there are."""

    block_ids: list[int] = field(default_factory=list)
    num_computed: int = 0


class Stepper:
    """A model with its caches. Blocks are handed out in random order, so that no sequence lies in one piece."""

    def __init__(self, model: CausalLM, num_blocks: int = 64) -> None:
        self.model = model
        ops = model.device.ops
        self.caches = [
            ops.new_kv_cache(num_blocks, BLOCK_SIZE, model.num_kv_heads_local, model.head_dim)
            for _ in range(model.num_layers)
        ]
        self.free = list(range(num_blocks))
        random.Random(0).shuffle(self.free)

    def step(self, work: Sequence[tuple[Row, Sequence[int]]]) -> list[Tensor | None]:
        """Compute each row's tokens; returns their logits [num_tokens, vocab_size], None on ranks other than 0."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        cu_seqlens_q = [0]
        for row, tokens in work:
            end = row.num_computed + len(tokens)
            while len(row.block_ids) * BLOCK_SIZE < end:
                row.block_ids.append(self.free.pop())
            token_ids += tokens
            positions += range(row.num_computed, end)
            slots += (
                row.block_ids[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(row.num_computed, end)
            )
            row.num_computed = end
            cu_seqlens_q.append(len(token_ids))
        max_blocks = max(len(row.block_ids) for row, _ in work)
        metadata = StepMetadata(
            positions=torch.tensor(positions, dtype=torch.int64),
            slot_mapping=torch.tensor(slots, dtype=torch.int32),
            block_tables=torch.tensor(
                [row.block_ids + [0] * (max_blocks - len(row.block_ids)) for row, _ in work], dtype=torch.int32
            ),
            cu_seqlens_q=tuple(cu_seqlens_q),
            kv_lens=tuple(row.num_computed for row, _ in work),
        )
        logits = self.model.logits(
            self.model.forward(torch.tensor(token_ids, dtype=torch.int64), metadata, self.caches)
        )
        if logits is None:
            return [None] * len(work)
        return list(torch.split(logits, [len(tokens) for _, tokens in work]))


def random_tokens(count: int, vocab_size: int = 320, seed: int = 0) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(vocab_size) for _ in range(count)]


def prefill(model: CausalLM, tokens: Sequence[int]) -> Tensor | None:
    """Logits of a whole prompt in one step: [num_tokens, vocab_size], or None on ranks other than 0."""
    return Stepper(model).step([(Row(), tokens)])[0]


def load(folder: Path, group: TensorParallelGroup | None = None, **options: Any) -> CausalLM:
    return load_model(folder, CpuDevice(), group or LoneRank(), on_progress=lambda done, total: None, **options)


def one_rank_of_many(rank: int, world_size: int, port: int, folders: Iterable[str], results: str) -> None:
    """What a spawned rank does: for each checkpoint a prefill of two rows, then a decode step; rank 0 saves logits."""
    torch.set_num_threads(1)
    group = join_group(CpuDevice(), rank, world_size, master_addr="127.0.0.1", master_port=port, timeout_s=60)
    saved = {folder: two_rows(load(Path(folder), group)) for folder in folders}
    if rank == 0:
        torch.save(saved, results)
    group.close()


def two_rows(model: CausalLM) -> Tensor | None:
    """Logits of a fixed piece of work: two prompts in one step, then one token of each."""
    stepper = Stepper(model)
    vocab_size = model.config.vocab_size
    rows = Row(), Row()
    first = stepper.step([(rows[0], random_tokens(21, vocab_size, 1)), (rows[1], random_tokens(5, vocab_size, 2))])
    second = stepper.step([(rows[0], random_tokens(1, vocab_size, 3)), (rows[1], random_tokens(1, vocab_size, 4))])
    parts = [part for part in first + second if part is not None]
    return torch.cat(parts) if parts else None
