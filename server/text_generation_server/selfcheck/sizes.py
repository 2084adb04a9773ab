"""Which sizes of ops one rank of a model runs."""

from __future__ import annotations

from text_generation_kernels.checks.shapes import ModelSizes
from text_generation_server.model_config import ModelConfig
from text_generation_server.sharding import split, split_heads


def sizes_of(config: ModelConfig, rank: int, world_size: int, block_size: int) -> ModelSizes:
    heads = split_heads(config.num_heads, config.num_kv_heads, rank, world_size)
    return ModelSizes(
        hidden_size=config.hidden_size,
        num_heads=len(heads.query),
        num_kv_heads=len(heads.kv),
        head_dim=config.head_dim,
        intermediate_size=len(split(config.intermediate_size, rank, world_size)),
        vocab_size=config.vocab_size,
        block_size=block_size,
        norm_eps=config.rms_norm_eps,
        has_head_norm=config.qk_norm,
        has_qkv_bias=config.qkv_bias,
    )
