"""The model families, one line each: what transformers' class of a family knows and its config.json does not say.

All of them are a pre-norm decoder of grouped-query attention with rotary positions and a gated MLP, so the lines below
are all that differs. Knows no tensors.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """How to read one model_type. A switch is True, False, or the key in config.json that decides."""

    qkv_bias: bool | str = False
    o_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool = False  # RMS norm over each query and key head, before the rotation
    head_dim: int | None = None  # when config.json is silent; None: hidden_size / num_attention_heads
    sliding_window: bool | str = False  # does the key `sliding_window` count
    default_sliding_window: int | None = None  # when config.json has no such key


FAMILIES: dict[str, Family] = {
    "llama": Family(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias"),
    "mistral": Family(sliding_window=True, default_sliding_window=4096),
    "qwen2": Family(qkv_bias=True, sliding_window="use_sliding_window", default_sliding_window=4096),
    "qwen3": Family(
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        qk_norm=True,
        head_dim=128,
        sliding_window="use_sliding_window",
        default_sliding_window=4096,
    ),
}
