"""The ops in the most obvious way: one token, one head, one cache slot at a time. The oracle of every other backend.

Takes float32 and computes in float64, so that a difference to it is the other side's rounding. Knows nothing about
speed; runs on the CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from text_generation_kernels.interface import KVCache, Ops, PackedWeight, StepMetadata


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
