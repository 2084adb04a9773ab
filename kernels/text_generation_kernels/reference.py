"""The ops in the most obvious way: one token, one head, one cache slot at a time. The oracle of every other backend.

Takes float32 and computes in float64, so that a difference to it is the other side's rounding. Knows nothing about
speed; runs on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from text_generation_kernels.interface import Filters, KVCache, MostLikely, Ops, PackedWeight, StepMetadata


class ReferenceOps(Ops):
    """Caches are [num_blocks, block_size, num_kv_heads, head_dim] float32; weights stay as they are, in float32."""

    name = "reference"
    activation_dtype = torch.float32

    def can_embed(self, weight: PackedWeight) -> bool:
        return True

    def pack_weight(self, weight: Tensor) -> PackedWeight:
        data = weight.to(torch.float32).contiguous()
        out_features, in_features = data.shape
        return PackedWeight(data, out_features, in_features, layout="nd", nbytes=data.nbytes)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
        matrix: Tensor = weight.data
        y = x.double() @ matrix.double().T
        if bias is not None:
            y += bias.double()
        return y.float()

    def embedding(self, token_ids: Tensor, weight: Tensor | PackedWeight) -> Tensor:
        table: Tensor = weight.data if isinstance(weight, PackedWeight) else weight
        rows = [table[token_id].float() for token_id in token_ids.tolist()]
        return torch.stack(rows) if rows else torch.zeros(0, table.shape[1])

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.double()
        mean_square = (wide * wide).mean(dim=-1, keepdim=True)
        return (wide / torch.sqrt(mean_square + eps) * weight.double()).float()

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = x + residual  # in float32: the residual stream itself is rounded to the activation dtype
        return self.rms_norm(total, weight, eps), total

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return _rotate(q, cos, sin), _rotate(k, cos, sin)

    def silu_and_mul(self, x: Tensor) -> Tensor:
        size = x.shape[-1] // 2
        gate, up = x[:, :size].double(), x[:, size:].double()
        return (gate / (1 + torch.exp(-gate)) * up).float()

    def new_kv_cache(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> KVCache:
        shape = (num_blocks, block_size, num_kv_heads, head_dim)
        return KVCache(torch.zeros(shape), torch.zeros(shape), block_size)

    def kv_block_bytes(self, block_size: int, num_kv_heads: int, head_dim: int) -> int:
        return 2 * block_size * num_kv_heads * head_dim * self.activation_dtype.itemsize

    def check_block_size(self, block_size: int) -> None:
        if block_size < 1:
            raise ValueError(f"block size {block_size} is not supported by the reference; use 1 or more")

    def store_kv(self, k: Tensor, v: Tensor, cache: KVCache, slot_mapping: Tensor) -> None:
        for token, slot in enumerate(slot_mapping.tolist()):
            if slot >= 0:
                cache.k[slot // cache.block_size, slot % cache.block_size] = k[token]
                cache.v[slot // cache.block_size, slot % cache.block_size] = v[token]

    def cache_contents(self, cache: KVCache) -> tuple[Tensor, Tensor]:
        return cache.k, cache.v

    def attention(self, q: Tensor, cache: KVCache, step: StepMetadata, scale: float) -> Tensor:
        out = torch.zeros(q.shape)
        num_heads = q.shape[1]
        group_size = num_heads // cache.k.shape[2]
        for row in range(step.num_rows):
            first, end = step.cu_seqlens_q[row], step.cu_seqlens_q[row + 1]
            kv_len = step.kv_lens[row]
            blocks = step.block_tables[row].tolist()
            places = [(blocks[position // cache.block_size], position % cache.block_size) for position in range(kv_len)]
            keys = [cache.k[block, offset].double() for block, offset in places]  # each [num_kv_heads, head_dim]
            values = [cache.v[block, offset].double() for block, offset in places]
            for token in range(first, end):
                num_visible = kv_len - (end - token) + 1
                visible_keys, visible_values = torch.stack(keys[:num_visible]), torch.stack(values[:num_visible])
                for head in range(num_heads):
                    kv_head = head // group_size
                    scores = visible_keys[:, kv_head] @ q[token, head].double() * scale  # [num_visible]
                    weights = torch.exp(scores - scores.max())
                    out[token, head] = (weights / weights.sum()) @ visible_values[:, kv_head]
        return out

    def most_likely(self, logits: Tensor) -> MostLikely:
        ids = [max(range(len(row)), key=row.__getitem__) for row in logits.tolist()]
        values = [row[token_id] for row, token_id in zip(logits.tolist(), ids, strict=True)]
        log_sums = [
            math.log(math.fsum(math.exp(logit - value) for logit in row))
            for row, value in zip(logits.tolist(), values, strict=True)
        ]
        return MostLikely(torch.tensor(ids, dtype=torch.int64), torch.tensor(values), torch.tensor(log_sums))

    def top_k(self, logits: Tensor, rows: Sequence[int], k: int) -> tuple[Tensor, Tensor]:
        ids = torch.zeros(len(rows), k, dtype=torch.int64)
        for index, row in enumerate(rows):
            values = logits[row].tolist()
            ids[index] = torch.tensor(sorted(range(len(values)), key=lambda i: (-values[i], i))[:k])
        return logits[list(rows)].gather(1, ids), ids

    def draw(
        self, logits: Tensor, rows: Sequence[int], filters: Sequence[Filters], uniforms: Sequence[float]
    ) -> Tensor:
        ids: list[int] = []
        for row, wanted, uniform in zip(rows, filters, uniforms, strict=True):
            probs = surviving(logits[row].tolist(), wanted)
            share, reached = uniform * math.fsum(probs.values()), 0.0
            possible = [token_id for token_id in sorted(probs) if probs[token_id] > 0]
            for token_id in possible:
                reached += probs[token_id]
                if reached > share:
                    break
            ids.append(token_id)
        return torch.tensor(ids, dtype=torch.int64)


def surviving(logits: Sequence[float], filters: Filters) -> dict[int, float]:
    """The tokens that the filters leave, and their probabilities."""
    largest = max(logits)
    scores = {token_id: (logit - largest) / filters.temperature for token_id, logit in enumerate(logits)}
    best_first = sorted(scores, key=lambda i: (-scores[i], i))
    if 0 < filters.top_k < len(scores):
        kth = scores[best_first[filters.top_k - 1]]
        best_first = [i for i in best_first if scores[i] >= kth]
    probs = _probabilities({i: scores[i] for i in best_first})
    if filters.top_p < 1.0:
        probs = _probabilities({i: scores[i] for i in _until(filters.top_p, best_first, probs)})
    if filters.typical_p < 1.0:
        surprise = {i: -math.log(p) if p > 0 else math.inf for i, p in probs.items()}
        entropy = math.fsum(p * surprise[i] for i, p in probs.items() if p > 0)
        distance = {i: abs(surprise[i] - entropy) for i in probs}
        nearest = _until(filters.typical_p, sorted(probs, key=lambda i: (distance[i], i)), probs)
        probs = _probabilities({i: scores[i] for i in probs if distance[i] <= distance[nearest[-1]]})
    return probs


def _probabilities(scores: dict[int, float]) -> dict[int, float]:
    total = math.fsum(math.exp(score) for score in scores.values())
    return {i: math.exp(score) / total for i, score in scores.items()}


def _until(mass: float, order: Sequence[int], probs: dict[int, float]) -> Sequence[int]:
    """The first of `order` that reach the mass together."""
    reached = 0.0
    for count, token_id in enumerate(order, start=1):
        reached += probs[token_id]
        if reached >= mass:
            return order[:count]
    return order


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    out = x.clone()
    rotary_half = cos.shape[1]
    for token in range(x.shape[0]):
        for i in range(rotary_half):
            first, second = x[token, :, i].double(), x[token, :, i + rotary_half].double()  # [num_heads]
            c, s = cos[token, i].double(), sin[token, i].double()
            out[token, :, i] = first * c - second * s
            out[token, :, i + rotary_half] = second * c + first * s
    return out
