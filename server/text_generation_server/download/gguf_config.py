"""The Hugging Face configuration of the model in a GGUF: `config.json` and `generation_config.json`.

Knows the metadata keys of the architectures that are served; nothing about tensors' bytes or text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from text_generation_server.download.errors import DownloadError
from text_generation_server.download.gguf_file import GGUFFile
from text_generation_server.download.gguf_weights import ROPE_FACTORS, checkpoint_dtype

_TORCH_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

# Which rope the factors tensor was computed from cannot be read back in full; these are the ones models were made with.
_LLAMA3_LOW_FREQ_FACTOR, _LLAMA3_HIGH_FREQ_FACTOR, _LLAMA3_ORIGINAL_LENGTH = 1.0, 4.0, 8192


@dataclass(frozen=True)
class _Architecture:
    model_type: str
    class_name: str
    interleaved_rope: bool  # Q and K rows are permuted in the file


# Mistral's GGUFs say "llama": same layout, and the attention window they leave out is not used by later releases.
ARCHITECTURES = {
    "llama": _Architecture("llama", "LlamaForCausalLM", True),
    "qwen2": _Architecture("qwen2", "Qwen2ForCausalLM", False),
    "qwen3": _Architecture("qwen3", "Qwen3ForCausalLM", False),
}


class _Keys:
    """The metadata below the architecture's own prefix."""

    def __init__(self, gguf: GGUFFile) -> None:
        self.path = gguf.path
        self.name = str(gguf.metadata.get("general.architecture"))
        self._metadata = gguf.metadata
        if self.name not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise DownloadError(
                f"{gguf.path} holds a model of architecture {self.name}; those that can be read: {known}"
            )

    def get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"{self.name}.{key}", default)

    def number(self, key: str) -> Any:
        value = self.get(key)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]  # given per layer, all the same
        if not isinstance(value, int | float):
            raise DownloadError(f"{self.path} gives {self.name}.{key} as {str(value)[:80]}; one number is needed")
        return value


def interleaved_heads(gguf: GGUFFile) -> dict[str, int]:
    """Heads of each projection whose rows must be put back into a checkpoint's order."""
    keys = _Keys(gguf)
    if not ARCHITECTURES[keys.name].interleaved_rope:
        return {}
    num_heads = keys.number("attention.head_count")
    return {
        "attn_q": num_heads,
        "attn_k": keys.number("attention.head_count_kv") if keys.get("attention.head_count_kv") else num_heads,
    }


def config(gguf: GGUFFile) -> dict[str, Any]:
    """`config.json`.

    Raises:
        DownloadError: an architecture, or a variant of it, that is not served.
    """
    keys = _Keys(gguf)
    architecture = ARCHITECTURES[keys.name]
    if keys.get("expert_count"):
        raise DownloadError(
            f"{gguf.path} holds a mixture of {keys.get('expert_count')} experts; only dense models are read"
        )
    num_parts = gguf.metadata.get("split.count", 1)
    if num_parts > 1:
        raise DownloadError(f"{gguf.path} is one of {num_parts} parts: join them (llama-gguf-split --merge) first")
    if "token_embd.weight" not in gguf.tensors:
        raise DownloadError(f"{gguf.path} has no token_embd.weight: it holds no language model")
    hidden_size = keys.number("embedding_length")
    num_heads = keys.number("attention.head_count")
    head_dim = keys.get("attention.key_length") or hidden_size // num_heads
    if keys.get("rope.dimension_count", head_dim) != head_dim:
        raise DownloadError(f"{gguf.path} turns only part of each head by its rope, which is not supported")
    values: dict[str, Any] = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "vocab_size": gguf.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": keys.number("feed_forward_length"),
        "num_hidden_layers": keys.number("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": keys.number("attention.head_count_kv")
        if keys.get("attention.head_count_kv")
        else num_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": keys.number("context_length"),
        "rms_norm_eps": _short(keys.number("attention.layer_norm_rms_epsilon")),
        "rope_theta": _short(keys.get("rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(gguf, keys, head_dim),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "torch_dtype": _TORCH_DTYPES[checkpoint_dtype(gguf)],
        "use_cache": True,
        **special_token_ids(gguf.metadata),
    }
    if architecture.model_type != "qwen2":  # whose projections always have one
        values["attention_bias"] = "blk.0.attn_q.bias" in gguf.tensors
    if architecture.model_type == "llama":
        values["mlp_bias"] = "blk.0.ffn_gate.bias" in gguf.tensors
    return values


def generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """`generation_config.json`: every id that ends an answer."""
    return {"_from_model_config": True, **special_token_ids(metadata)}


def special_token_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """`bos_token_id`, `eos_token_id` (a list if several tokens end a text) and `pad_token_id`, those that are set."""
    ids: dict[str, Any] = {}
    for name, key in (("bos_token_id", "bos_token_id"), ("pad_token_id", "padding_token_id")):
        if (token_id := metadata.get(f"tokenizer.ggml.{key}")) is not None:
            ids[name] = token_id
    # end of text, of a turn, of a message: dict, for their order and without repetition
    ends = dict.fromkeys(
        metadata[key]
        for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
        if metadata.get(key) is not None
    )
    if ends:
        ids["eos_token_id"] = next(iter(ends)) if len(ends) == 1 else list(ends)
    return ids


def _rope_scaling(gguf: GGUFFile, keys: _Keys, head_dim: int) -> dict[str, Any] | None:
    kind, factor = keys.get("rope.scaling.type"), keys.get("rope.scaling.factor")
    if ROPE_FACTORS in gguf.tensors:
        return _llama3_scaling(gguf, keys, head_dim)
    if kind in (None, "none") or not factor:
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": _short(factor)}
    if kind == "yarn":
        original = keys.get("rope.scaling.original_context_length") or round(keys.number("context_length") / factor)
        return {"rope_type": "yarn", "factor": _short(factor), "original_max_position_embeddings": original}
    raise DownloadError(f"{gguf.path} scales its rope by {kind}; those that can be read: none, linear, yarn, llama3")


def _llama3_scaling(gguf: GGUFFile, keys: _Keys, head_dim: int) -> dict[str, Any]:
    """Find the settings again that give the file's factors, by which each frequency of the rope is divided."""
    factors = gguf.raw(gguf.tensors[ROPE_FACTORS]).view(np.float32).reshape(-1)
    factor = float(factors.max())
    frequencies = keys.get("rope.freq_base", 10000.0) ** (-np.arange(0, head_dim, 2) / head_dim)
    turns = _LLAMA3_ORIGINAL_LENGTH * frequencies / (2 * math.pi)  # full turns within the original context
    smooth = (turns - _LLAMA3_LOW_FREQ_FACTOR) / (_LLAMA3_HIGH_FREQ_FACTOR - _LLAMA3_LOW_FREQ_FACTOR)
    smooth = np.clip(smooth, 0.0, 1.0)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise DownloadError(
            f"{gguf.path} carries rope factors of a kind that cannot be read; use the original checkpoint"
        )
    return {
        "rope_type": "llama3",
        "factor": _short(factor),
        "low_freq_factor": _LLAMA3_LOW_FREQ_FACTOR,
        "high_freq_factor": _LLAMA3_HIGH_FREQ_FACTOR,
        "original_max_position_embeddings": _LLAMA3_ORIGINAL_LENGTH,
    }


def _short(value: float) -> float:
    """The float32 of the file as people wrote it: 9.999999747378752e-06 -> 1e-05."""
    return float(f"{value:.7g}")
