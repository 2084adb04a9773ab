"""The ops on plain torch, in float32. Which torch calls, and why these; attention has a module of its own.

Activations are float32 always: bfloat16 and float16 matrix products are 10 to 100 times slower on most CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from text_generation_kernels import sampling
from text_generation_kernels.cpu import drawing
from text_generation_kernels.cpu.attention import PagedAttention
from text_generation_kernels.interface import Filters, KVCache, MostLikely, Ops, PackedWeight, StepMetadata


class CpuOps(Ops):
    """Caches are [num_blocks, block_size, num_kv_heads, head_dim] float32.

    Weights of 16 bits are packed as float16 for FBGEMM, where this torch has it (x86): 3 to 5 times as fast at 8 to 32
    rows as torch's float32 product, and exact for bfloat16 values of at least 6e-5; smaller ones keep an error of
    3e-8. Other weights stay row-major, in float32.
    """

    name = "cpu"
    activation_dtype = torch.float32

    def __init__(self) -> None:
        self._paged_attention = PagedAttention()
        self._has_fbgemm = "fbgemm" in torch.backends.quantized.supported_engines

    @property
    def description(self) -> str:
        return "plain torch"

    def pack_weight(self, weight: Tensor) -> PackedWeight:
        out_features, in_features = weight.shape
        if self._has_fbgemm and _fits_float16(weight):
            packed = torch.ops.quantized.linear_prepack_fp16(weight.to(torch.float32).contiguous(), None)
            return PackedWeight(packed, out_features, in_features, layout="fbgemm_f16", nbytes=2 * weight.numel())
        data = weight.to(torch.float32).contiguous()  # each returns its input where there is nothing to do
        return PackedWeight(data, out_features, in_features, layout="nd", nbytes=data.nbytes)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
        if weight.layout == "nd":
            return F.linear(x, weight.data, bias)
        if not len(x):
            return torch.empty(0, weight.out_features)
        y: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, weight.data)
        return y if bias is None else y.add_(bias)

    def can_embed(self, weight: PackedWeight) -> bool:
        return weight.layout == "nd"

    def embedding(self, token_ids: Tensor, weight: Tensor | PackedWeight) -> Tensor:
        table: Tensor = weight.data if isinstance(weight, PackedWeight) else weight
        return F.embedding(token_ids, table).to(torch.float32)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        # Level with F.rms_norm (torch 2.4 and up) at one row and 2.7 times faster at 512 x 576 on one thread, 7 on two:
        # in place there are two large buffers instead of four.
        inverse_rms = x.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
        return (x * inverse_rms).mul_(weight)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        residual.add_(x)
        return self.rms_norm(residual, weight, eps), residual

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)  # [num_tokens, 1, rotary_half]
        return _rotate(q, cos, sin), _rotate(k, cos, sin)

    def silu_and_mul(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def new_kv_cache(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> KVCache:
        shape = (num_blocks, block_size, num_kv_heads, head_dim)
        return KVCache(torch.zeros(shape), torch.zeros(shape), block_size)

    def kv_block_bytes(self, block_size: int, num_kv_heads: int, head_dim: int) -> int:
        return 2 * block_size * num_kv_heads * head_dim * self.activation_dtype.itemsize

    def check_block_size(self, block_size: int) -> None:
        if block_size < 16 or block_size % 16:
            raise ValueError(f"block size {block_size} is not supported on the CPU; use a multiple of 16")

    def cache_contents(self, cache: KVCache) -> tuple[Tensor, Tensor]:
        return cache.k, cache.v

    def store_kv(self, k: Tensor, v: Tensor, cache: KVCache, slot_mapping: Tensor) -> None:
        if not len(slot_mapping):
            return
        slots = slot_mapping.long()  # what index_copy_ takes
        if slots.min() < 0:  # rare: reading the minimum costs 1 us, selecting every time costs a copy of k and v
            written = slots >= 0
            slots, k, v = slots[written], k[written], v[written]
        cache.k.flatten(0, 1).index_copy_(0, slots, k)
        cache.v.flatten(0, 1).index_copy_(0, slots, v)

    def attention(self, q: Tensor, cache: KVCache, step: StepMetadata, scale: float) -> Tensor:
        return self._paged_attention(q, cache, step, scale)

    def most_likely(self, logits: Tensor) -> MostLikely:
        return sampling.most_likely(logits)

    def top_k(self, logits: Tensor, rows: Sequence[int], k: int) -> tuple[Tensor, Tensor]:
        return sampling.top_k(logits, rows, k)

    def draw(
        self, logits: Tensor, rows: Sequence[int], filters: Sequence[Filters], uniforms: Sequence[float]
    ) -> Tensor:
        return drawing.draw(logits, rows, filters, uniforms)


def _fits_float16(weight: Tensor) -> bool:
    return weight.dtype in (torch.float16, torch.bfloat16) and bool(
        weight.abs().max() <= torch.finfo(torch.float16).max
    )


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [num_tokens, num_heads, head_dim], strided; cos, sin: [num_tokens, 1, rotary_half]. Returns a new tensor."""
    rotary_half = cos.shape[-1]
    first, second = x[..., :rotary_half], x[..., rotary_half : 2 * rotary_half]
    out = torch.empty(x.shape)
    torch.mul(first, cos, out=out[..., :rotary_half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out[..., rotary_half : 2 * rotary_half]).addcmul_(first, sin)
    if 2 * rotary_half < x.shape[-1]:
        out[..., 2 * rotary_half :] = x[..., 2 * rotary_half :]
    return out
