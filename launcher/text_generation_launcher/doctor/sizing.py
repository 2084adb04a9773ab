"""Weights, cache and limits in bytes: the sum that a shard does at warm-up, with what is known before it has loaded.

The working memory of a step is not counted, since only a run tells it. So what does not fit here does not fit at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from text_generation_launcher.doctor.facts import ModelFacts
from text_generation_server.memory_budget import MemoryBudget, cache_bytes
from text_generation_server.settings import ServeSettings

_HCCL_BUFFER_MB = 200
_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Sizes:
    """Of one shard."""

    weight_bytes: int
    token_bytes: int  # keys and values of one token
    cache_bytes: int  # what the cache may take at most
    cap_bytes: int  # of the device's memory, what may be used

    @property
    def cache_tokens(self) -> int:
        return self.cache_bytes // self.token_bytes


def served_dtype(model: ModelFacts, serve: ServeSettings, kind: str) -> str:
    """The type that weights are kept in."""
    if serve.dtype is not None:
        return serve.dtype
    return "float16" if kind == "npu" else "/".join(model.dtypes) or "float32"


def estimate(
    model: ModelFacts,
    serve: ServeSettings,
    kind: str,
    *,
    num_shards: int,
    memory: tuple[int, int],
    environ: Mapping[str, str],
) -> Sizes:
    """One shard's sizes. `memory` is (free, total) bytes of its device."""
    free, total = memory
    weights = _weight_bytes(model, serve, kind)
    own_weights = weights // num_shards
    buffers = hccl_bytes(environ) if kind == "npu" and num_shards > 1 else 0
    budget = MemoryBudget.from_gib(serve.cuda_memory_fraction, serve.max_memory_gb, serve.reserved_memory_gb)
    return Sizes(
        weight_bytes=own_weights,
        token_bytes=_token_bytes(model, serve, kind, num_shards),
        cache_bytes=cache_bytes(
            kind,
            total_bytes=total,
            free_bytes=free - (weights if kind == "cpu" else own_weights) - buffers,
            used_bytes=own_weights + buffers,
            budget=budget,
            world_size=num_shards,
        ),
        cap_bytes=budget.cap_bytes(total),
    )


def hccl_bytes(environ: Mapping[str, str]) -> int:
    """What HCCL takes for a group of shards, beside torch's memory: a buffer to send from and one to receive into."""
    text = environ.get("HCCL_BUFFSIZE", "")
    return 2 * (int(text) if text.isdigit() else _HCCL_BUFFER_MB) * 2**20


def _weight_bytes(model: ModelFacts, serve: ServeSettings, kind: str) -> int:
    dtype = served_dtype(model, serve, kind)
    if not model.float_elements or dtype not in _ITEM_BYTES:
        return model.stored_bytes
    linear = model.linear_elements if serve.quantize == "w8a16" else 0
    return (model.float_elements - linear) * _ITEM_BYTES[dtype] + linear + model.other_bytes


def _token_bytes(model: ModelFacts, serve: ServeSettings, kind: str, num_shards: int) -> int:
    item_bytes = 1 if (serve.kv_cache_dtype or "").startswith("fp8") else 2
    if kind == "cpu" and serve.kv_cache_dtype == "float32":
        item_bytes = 4
    heads = -(-model.num_kv_heads // num_shards)
    return 2 * model.num_layers * heads * model.head_dim * item_bytes
