"""The ops on an Ascend NPU: each holds its candidates, and hands its tensors to the one that takes their shapes.

What a candidate may take for granted is done here: no empty tensors, contiguous queries and keys, slots that exist.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from text_generation_kernels import sampling
from text_generation_kernels.errors import first_line
from text_generation_kernels.interface import (
    CaptureRefused,
    Filters,
    KVCache,
    MostLikely,
    Ops,
    PackedWeight,
    StepMetadata,
)
from text_generation_kernels.npu.activation import GatedShape, silu_candidates
from text_generation_kernels.npu.attention_choices import attention_choices
from text_generation_kernels.npu.attention_rows import AttentionCandidate, HeadShape, Keys, Run, joined, split
from text_generation_kernels.npu.candidates import CandidateStatus, Choice, NoCandidate
from text_generation_kernels.npu.graph_tasks import GraphTasks
from text_generation_kernels.npu.kv_cache import (
    SPARE_BLOCKS,
    Layout,
    NpuKVCache,
    StoreShape,
    new_cache,
    read_cache,
    store_candidates,
)
from text_generation_kernels.npu.linear import LinearShape, linear_candidates
from text_generation_kernels.npu.norms import NormShape, add_norm_candidates, norm_candidates
from text_generation_kernels.npu.nz import WeightPacker
from text_generation_kernels.npu.op_table import op_records
from text_generation_kernels.npu.rotary import RotaryShape, RotaryTables, rotary_candidates
from text_generation_kernels.npu.schemas import InstalledOps, Lookup, registered_op
from text_generation_kernels.npu.soc import Family

BLOCK_MULTIPLE = 16
LARGEST_BLOCK = 1024


class NpuOps(Ops):
    """The ops of one chip family.

    Args:
        torch_npu: the module, imported.
        family: the chip's.
        device: where tensors lie.
        dtype: of activations, weights, keys and values: float16, float32, or bfloat16 where the family has it.
        weight_layout: see `WeightPacker`.
        lookup: where torch_npu's ops are found.
    """

    name = "npu"

    def __init__(
        self,
        torch_npu: Any,
        family: Family,
        device: torch.device,
        dtype: torch.dtype = torch.float16,
        *,
        weight_layout: str = "auto",
        lookup: Lookup = registered_op,
    ) -> None:
        self.family = family
        self.activation_dtype = dtype
        self.token_multiple = family.token_multiple
        self.spare_kv_blocks = SPARE_BLOCKS
        self.saturates_at = torch.finfo(dtype).max if family.saturates else math.inf
        self.tasks = GraphTasks(torch_npu.npu)
        self.weights = WeightPacker(torch_npu, device, dtype, family, wanted=weight_layout)
        self._torch_npu = torch_npu
        self.torch_device = device
        installed = InstalledOps(family.name, lookup)
        self._attention = attention_choices(torch_npu, device, installed, family, self.tasks)
        self._store = store_candidates(installed, family)
        self._norm = norm_candidates(installed, family)
        self._add_norm = add_norm_candidates(installed, family, self._norm)
        self._rotary = rotary_candidates(installed, family)
        self._silu = silu_candidates(installed, family)
        self._linear = linear_candidates(installed, family)
        # Of the step that is being computed, the same for all its layers. Known by the object itself, which is kept
        # here so that no other can have its address.
        self._split: tuple[StepMetadata, object, tuple[tuple[AttentionCandidate, Run], ...]] | None = None
        self._tables: RotaryTables | None = None
        self._slots: tuple[Tensor, int, Tensor] | None = None  # what the step gave, the spare slot, what is written to

    @property
    def description(self) -> str:
        return f"torch_npu, family {self.family.name}, {self.weights.summary}"

    @property
    def choices(self) -> dict[str, Choice[Any, Any]]:
        """The ops that have candidates, by name."""
        choices: list[Choice[Any, Any]] = [
            *self._attention.values(),
            self._store,
            self._norm,
            self._add_norm,
            self._rotary,
            self._silu,
            self._linear,
        ]
        return {choice.op: choice for choice in choices}

    def candidates(self, op: str) -> tuple[CandidateStatus, ...]:
        """The ways to compute an op, in order of preference, with the reasons of those that are out."""
        return self.choices[op].candidates()

    def use(self, op: str, candidate: str) -> None:
        """Prefer a candidate to all others, for the shapes that it takes."""
        self.choices[op].use(candidate)

    def reject(self, op: str, candidate: str, reason: str) -> None:
        """Take a candidate out. Caches that were made before may be in a layout that those left cannot read."""
        self.choices[op].reject(candidate, reason)

    def use_composed(self) -> None:
        """Prefer each op's last candidate, the one made of plain torch ops."""
        for choice in self.choices.values():
            choice.use(choice.candidates()[-1].name)

    def check_atb(self) -> str | None:
        """Call ATB once, since NNAL missing or of another version shows at its first call only.

        Returns: the reason why ATB cannot be called, all of whose candidates are then out; None if it can, or if this
        family has none.
        """
        store = next((candidate for candidate in self._store.available if is_atb(candidate.name)), None)
        if store is None:
            return None
        try:
            dtype: torch.dtype = torch.float16
            layout: Layout = "nd" if store.refusal(StoreShape("nd", dtype)) is None else "nz"
            cache = new_cache(self._torch_npu, self.torch_device, dtype, layout, (1, 128, 1, 128))
            k = torch.zeros(1, 1, 128, dtype=dtype, device=self.torch_device)
            store.run(k, k, cache, torch.zeros(1, dtype=torch.int32, device=self.torch_device))
            self._torch_npu.npu.synchronize()
        except (RuntimeError, OSError) as error:
            reason = f"ATB cannot be called ({first_line(error)})"
            for choice in self.choices.values():
                for candidate in choice.available:
                    if is_atb(candidate.name):
                        choice.reject(candidate.name, reason)
            return reason
        return None

    def can_embed(self, weight: PackedWeight) -> bool:
        return weight.layout == "nd"

    def pack_weight(self, weight: Tensor) -> PackedWeight:
        return self.weights.pack(weight)

    def pack_table(self, table: Tensor) -> PackedWeight:
        return self.weights.pack(table, is_indexed=True)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
        if not len(x):
            return x.new_empty(0, weight.out_features)
        return self._linear.select(LinearShape(weight.layout, x.dtype)).run(x, weight.data, bias)

    def embedding(self, token_ids: Tensor, weight: Tensor | PackedWeight) -> Tensor:
        table: Tensor = weight.data if isinstance(weight, PackedWeight) else weight
        return F.embedding(token_ids, table).to(self.activation_dtype)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if not len(x):
            return torch.empty_like(x)
        return self._norm.select(NormShape(x.shape[-1], x.dtype)).run(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        if not len(x):
            return torch.empty_like(x), residual
        return self._add_norm.select(NormShape(x.shape[-1], x.dtype)).run(x, residual, weight, eps)

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        if not len(q):
            return q, k
        tables = self._tables
        if tables is None or tables.cos is not cos or tables.sin is not sin:
            tables = self._tables = RotaryTables(cos, sin)
        shape = RotaryShape(q.shape[-1], 2 * cos.shape[-1], max(q.shape[1], k.shape[1]), q.dtype)
        return self._rotary.select(shape).run(q, k, tables)

    def silu_and_mul(self, x: Tensor) -> Tensor:
        if not len(x):
            return x.new_empty(0, x.shape[-1] // 2)
        return self._silu.select(GatedShape(x.shape[-1], x.dtype)).run(x)

    def new_kv_cache(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> NpuKVCache:
        shape = HeadShape(num_kv_heads, num_kv_heads, head_dim, block_size, "nd", self.activation_dtype)
        sizes = (num_blocks, block_size, num_kv_heads, head_dim)
        return new_cache(self._torch_npu, self.torch_device, self.activation_dtype, self._cache_layout(shape), sizes)

    def kv_block_bytes(self, block_size: int, num_kv_heads: int, head_dim: int) -> int:
        return 2 * block_size * num_kv_heads * head_dim * self.activation_dtype.itemsize

    def check_block_size(self, block_size: int) -> None:
        if block_size < BLOCK_MULTIPLE or block_size % BLOCK_MULTIPLE or block_size > LARGEST_BLOCK:
            raise ValueError(
                f"block size {block_size} is not supported on the NPU; use a multiple of {BLOCK_MULTIPLE} up to "
                f"{LARGEST_BLOCK}, best 128"
            )

    def store_kv(self, k: Tensor, v: Tensor, cache: KVCache, slot_mapping: Tensor) -> None:
        assert isinstance(cache, NpuKVCache)
        if not len(slot_mapping):
            return  # ATB raises on an empty step
        k, v = k.contiguous(), v.contiguous()
        slots = self._existing_slots(slot_mapping, cache)
        self._store.select(StoreShape(cache.layout, k.dtype)).run(k, v, cache, slots)
        if cache.layout == "nz":
            cache.handoff.written = (k, v, slot_mapping)

    def cache_contents(self, cache: KVCache) -> tuple[Tensor, Tensor]:
        assert isinstance(cache, NpuKVCache)
        return read_cache(self._torch_npu, cache)

    def attention(self, q: Tensor, cache: KVCache, step: StepMetadata, scale: float) -> Tensor:
        assert isinstance(cache, NpuKVCache)
        keys = cache.handoff.take(step.slot_mapping)
        if not step.num_tokens:
            return torch.zeros_like(q)
        q = q.contiguous()
        parts = []
        for candidate, run in self._runs(q, cache, step, has_keys=keys is not None):
            tokens = slice(run.first_token, run.end_token)
            own = None if keys is None else Keys(keys[0][tokens], keys[1][tokens])
            num_tasks = self.tasks.num_recorded
            parts.append(candidate.run(q[tokens], cache, run, scale, own))
            if self.tasks.recording is not None and self.tasks.num_recorded == num_tasks:
                raise CaptureRefused(f"{candidate.name} would keep the rows' lengths as they were at capture")
        if len(q) > step.num_tokens:
            parts.append(torch.zeros_like(q[step.num_tokens :]))
        return joined(parts)

    def most_likely(self, logits: Tensor) -> MostLikely:
        return sampling.most_likely(logits)

    def top_k(self, logits: Tensor, rows: Sequence[int], k: int) -> tuple[Tensor, Tensor]:
        return sampling.top_k(logits, rows, k)

    def draw(
        self, logits: Tensor, rows: Sequence[int], filters: Sequence[Filters], uniforms: Sequence[float]
    ) -> Tensor:
        return sampling.draw(logits, rows, filters, uniforms)

    def _existing_slots(self, slot_mapping: Tensor, cache: NpuKVCache) -> Tensor:
        """The slots of a step, those of the spare block where it writes nothing: each another one, as far as they go,
        since A5's write takes no slot twice."""
        if self._slots is None or self._slots[0] is not slot_mapping or self._slots[1] != cache.spare_slot:
            places = torch.arange(len(slot_mapping), dtype=torch.int32, device=self.torch_device)
            spare = places.remainder(cache.block_size).add(cache.spare_slot)
            self._slots = slot_mapping, cache.spare_slot, torch.where(slot_mapping < 0, spare, slot_mapping)
        return self._slots[2]

    def _runs(
        self, q: Tensor, cache: NpuKVCache, step: StepMetadata, *, has_keys: bool
    ) -> tuple[tuple[AttentionCandidate, Run], ...]:
        shape = HeadShape(q.shape[1], cache.num_kv_heads, q.shape[2], cache.block_size, cache.layout, q.dtype)
        key = (shape, has_keys, sum(choice.version for choice in self._attention.values()))
        if self._split is None or self._split[0] is not step or self._split[1] != key:
            self._split = (step, key, split(step, shape, self._attention, has_keys=has_keys))
        return self._split[2]

    def _cache_layout(self, shape: HeadShape) -> Layout:
        """What the preferred way of decoding wants, if it can be written."""
        layouts: tuple[Layout, ...] = ("nz", "nd")
        for candidate in self._attention["decode"].available:
            for layout in layouts:
                if candidate.refusal(replace(shape, layout=layout)) is None and self._can_store(layout, shape.dtype):
                    return layout
        raise NoCandidate(f"no way of decoding is left for {shape}")

    def _can_store(self, layout: Layout, dtype: torch.dtype) -> bool:
        return any(store.refusal(StoreShape(layout, dtype)) is None for store in self._store.available)


def is_atb(candidate: str) -> bool:
    """Whether a candidate is an op of ATB, told by its name."""
    record = op_records().get(candidate.partition(" ")[0])
    return record is not None and record.namespace == "atb"
