"""Grouped-query attention with rotary positions over a paged cache: one path for every family and every phase."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from text_generation_kernels.interface import KVCache, Ops, StepMetadata
from text_generation_server.layers.linear import ColumnParallelLinear, RowParallelLinear
from text_generation_server.model_config import ModelConfig
from text_generation_server.parallel import TensorParallelGroup
from text_generation_server.rope import attention_factor
from text_generation_server.sharding import split_heads
from text_generation_server.weights.shard_reader import Rows, ShardReader


@dataclass(frozen=True, slots=True)
class Attention:
    """One rank's heads of one layer's attention."""

    ops: Ops
    qkv: ColumnParallelLinear
    out: RowParallelLinear
    num_heads: int  # of this rank, as the next
    num_kv_heads: int
    head_dim: int
    scale: float  # of the scores
    q_norm: Tensor | None  # [head_dim]; with k_norm, or neither
    k_norm: Tensor | None
    norm_eps: float

    @classmethod
    def load(cls, reader: ShardReader, config: ModelConfig, group: TensorParallelGroup, prefix: str) -> Attention:
        """
        Args:
            prefix: e.g. "model.layers.0.self_attn".
        """
        size = config.head_dim
        heads = split_heads(config.num_heads, config.num_kv_heads, group.rank, group.world_size)
        query, kv = heads.query.scaled(size), heads.kv.scaled(size)
        q_features, kv_features = config.num_heads * size, config.num_kv_heads * size
        parts = [
            Rows(f"{prefix}.q_proj", query, q_features),
            Rows(f"{prefix}.k_proj", kv, kv_features),
            Rows(f"{prefix}.v_proj", kv, kv_features),
        ]
        return cls(
            ops=reader.device.ops,
            qkv=ColumnParallelLinear.load(reader, parts, config.hidden_size, bias=config.qkv_bias),
            out=RowParallelLinear.load(
                reader, group, f"{prefix}.o_proj", query, shape=(config.hidden_size, q_features), bias=config.o_bias
            ),
            num_heads=len(heads.query),
            num_kv_heads=len(heads.kv),
            head_dim=size,
            scale=attention_factor(config.rope) ** 2 * size**-0.5,
            q_norm=reader.vector(f"{prefix}.q_norm.weight", size) if config.qk_norm else None,
            k_norm=reader.vector(f"{prefix}.k_norm.weight", size) if config.qk_norm else None,
            norm_eps=config.rms_norm_eps,
        )

    def __call__(self, x: Tensor, rope: tuple[Tensor, Tensor], cache: KVCache, step: StepMetadata) -> Tensor:
        """
        Args:
            x: [num_tokens, hidden_size].
            rope: cosines and sines at the tokens' positions, from `RopeTable.at`.
            cache: this layer's; the step's keys and values are written into it.
        Returns: [num_tokens, hidden_size].
        """
        n = x.shape[0]
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        q, k, v = torch.split(self.qkv(x), [q_size, kv_size, kv_size], dim=-1)
        q = q.view(n, self.num_heads, self.head_dim)
        k = k.view(n, self.num_kv_heads, self.head_dim)
        v = v.view(n, self.num_kv_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.ops.rms_norm(q, self.q_norm, self.norm_eps)
            k = self.ops.rms_norm(k, self.k_norm, self.norm_eps)
        q, k = self.ops.rotary(q, k, *rope)
        self.ops.store_kv(k, v, cache, step.slot_mapping)
        attended = self.ops.attention(q, cache, step, self.scale)  # [n, num_heads, head_dim]
        return self.out(attended.reshape(n, q_size))
