"""What a model is, read once from a folder's config.json and generation_config.json.

The one place that knows how Hugging Face spells things, old and new. Everything else reads `ModelConfig`'s fields.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from text_generation_server.models.families import FAMILIES, Family
from text_generation_server.rope import ROPE_TYPES, RopeConfig
from text_generation_server.weights.folder import CheckpointError, check_model_folder, read_json

logger = logging.getLogger(__name__)

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model's facts. Sizes are the whole model's, not one shard's."""

    model_type: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope: RopeConfig
    stated_max_positions: int  # max_position_embeddings as config.json has it
    sliding_window: int | None  # tokens; None: every layer attends to everything
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool | None  # None: config.json is silent
    dtype: torch.dtype | None  # of the stored weights; None: config.json is silent
    eos_token_ids: tuple[int, ...]  # of both files, generation_config.json first, without repetition
    bos_token_id: int | None
    pad_token_id: int | None

    @property
    def max_position_embeddings(self) -> int:
        """Longest sequence: rope scaling counted, and no longer than a sliding window, since attention is full."""
        scaled = self.rope.max_positions(self.stated_max_positions)
        return scaled if self.sliding_window is None else min(scaled, self.sliding_window)

    @classmethod
    def from_hf(cls, folder: Path) -> ModelConfig:
        """Read a model folder.

        Raises:
            CheckpointError: one line naming the file, the key, what was seen and what is allowed.
        """
        check_model_folder(folder)
        hf = _Settings.read(folder / "config.json")
        model_type = hf.text("model_type")
        family = FAMILIES.get(model_type)
        if family is None:
            raise hf.error("model_type", f"{model_type!r} is not supported; supported are {_listed(FAMILIES)}")
        _refuse_quantized(hf, folder)
        activation = hf.values.get("hidden_act") or "silu"
        if activation != "silu":
            raise hf.error("hidden_act", f"{activation!r} is not supported; supported is silu")

        hidden_size, num_heads = hf.count("hidden_size"), hf.count("num_attention_heads")
        num_kv_heads = hf.count("num_key_value_heads", default=num_heads)
        if num_heads % num_kv_heads:
            raise hf.error("num_key_value_heads", f"{num_kv_heads} does not divide num_attention_heads={num_heads}")
        head_dim = hf.count("head_dim", default=family.head_dim or hidden_size // num_heads)
        if head_dim % 2:
            raise hf.error("head_dim", f"{head_dim} is odd; rotary positions need an even one")
        stated = hf.count("max_position_embeddings", default=hf.optional_count("max_sequence_length"))
        generation = _generation_settings(folder)
        config = cls(
            model_type=model_type,
            hidden_size=hidden_size,
            num_layers=hf.count("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            intermediate_size=hf.count("intermediate_size"),
            vocab_size=hf.count("vocab_size"),
            rms_norm_eps=hf.number("rms_norm_eps", default=1e-6),
            rope=_read_rope(hf, stated),
            stated_max_positions=stated,
            sliding_window=_sliding_window(hf, family),
            qkv_bias=hf.switch(family.qkv_bias),
            o_bias=hf.switch(family.o_bias),
            mlp_bias=hf.switch(family.mlp_bias),
            qk_norm=family.qk_norm,
            tie_word_embeddings=hf.optional_flag("tie_word_embeddings"),
            dtype=_read_dtype(hf),
            eos_token_ids=tuple(dict.fromkeys((*generation.token_ids("eos_token_id"), *hf.token_ids("eos_token_id")))),
            bos_token_id=_first(generation.token_ids("bos_token_id"), hf.token_ids("bos_token_id")),
            pad_token_id=_first(generation.token_ids("pad_token_id"), hf.token_ids("pad_token_id")),
        )
        if config.max_position_embeddings < config.rope.max_positions(stated):
            logger.warning(
                f"{model_type} uses a sliding window of {config.sliding_window} tokens, which is not supported: "
                f"sequences are limited to {config.max_position_embeddings} tokens, where full attention is the same"
            )
        return config

    def with_rope_scaling(self, rope_type: str | None, factor: float | None) -> ModelConfig:
        """The same model with the rope scaling of --rope-scaling and --rope-factor.

        Args:
            rope_type: "linear" or "dynamic"; None with a factor means linear, without one changes nothing.
            factor: None means 1.
        Raises:
            CheckpointError: another type, or a factor below 1.
        """
        if rope_type is None and factor is None:
            return self
        rope_type, factor = rope_type or "linear", 1.0 if factor is None else factor
        if rope_type not in {"linear", "dynamic"}:
            raise CheckpointError(f"--rope-scaling {rope_type} is not known; known are linear and dynamic")
        if factor < 1:
            raise CheckpointError(f"--rope-factor {factor:g} is too small; it must be at least 1")
        rope = RopeConfig(self.rope.theta, self.stated_max_positions, rope_type, factor)
        return replace(self, rope=rope)


@dataclass(frozen=True, slots=True)
class _Settings:
    """One JSON object and where it came from; a key that is null counts as absent."""

    path: Path
    values: Mapping[str, Any]
    within: str = ""  # the key of this object in the file, followed by a dot

    @classmethod
    def read(cls, path: Path) -> _Settings:
        return cls(path, read_json(path))

    def error(self, key: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {self.within}{key}: {problem}")

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str):
            raise self.error(key, f"must be a string, not {value!r}")
        return value

    def optional_count(self, key: str) -> int | None:
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(key, f"must be a positive whole number, not {value!r}")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        value = self.optional_count(key)
        value = default if value is None else value
        if value is None:
            raise self.error(key, "is missing; it must be a positive whole number")
        return value

    def optional_number(self, key: str) -> float | None:
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.error(key, f"must be a positive number, not {value!r}")
        return float(value)

    def number(self, key: str, default: float | None = None) -> float:
        value = self.optional_number(key)
        value = default if value is None else value
        if value is None:
            raise self.error(key, "is missing; it must be a positive number")
        return value

    def optional_flag(self, key: str) -> bool | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {value!r}")
        return value

    def switch(self, decided_by: bool | str) -> bool:
        return decided_by if isinstance(decided_by, bool) else bool(self.optional_flag(decided_by))

    def token_ids(self, key: str) -> list[int]:
        value = self.values.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
            raise self.error(key, f"must be a token id or a list of them, not {value!r}")
        return [i for i in ids if i >= 0]  # the first Llama checkpoints say -1 for none

    def section(self, key: str) -> _Settings | None:
        value = self.values.get(key)
        if not value:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"must be an object or null, not {value!r}")
        return _Settings(self.path, value, f"{self.within}{key}.")


def _generation_settings(folder: Path) -> _Settings:
    path = folder / "generation_config.json"
    return _Settings.read(path) if path.exists() else _Settings(path, {})


def _refuse_quantized(hf: _Settings, folder: Path) -> None:
    section = hf.section("quantization_config")
    separate = folder / "quantize_config.json"
    if section is not None:
        method = section.values.get("quant_method", "an unnamed method")
        raise hf.error("quantization_config", f"{method} is not supported; use a checkpoint that is not quantized")
    if separate.exists():
        method = read_json(separate).get("quant_method", "gptq")
        raise CheckpointError(f"{separate}: {method} is not supported; use a checkpoint that is not quantized")


def _read_dtype(hf: _Settings) -> torch.dtype | None:
    key = "dtype" if hf.values.get("dtype") is not None else "torch_dtype"
    value = hf.values.get(key)
    if value is None:
        return None
    dtype = _DTYPES.get(str(value).removeprefix("torch."))
    if dtype is None:
        raise hf.error(key, f"{value!r} is not supported; supported are {_listed(_DTYPES)}")
    return dtype


def _sliding_window(hf: _Settings, family: Family) -> int | None:
    if not hf.switch(family.sliding_window):
        return None
    window = hf.optional_count("sliding_window") if "sliding_window" in hf.values else family.default_sliding_window
    # Qwen may use its window in the layers from max_window_layers on only, or list each layer's kind.
    num_layers = hf.count("num_hidden_layers")
    layer_types = hf.values.get("layer_types")
    if isinstance(layer_types, list):
        return window if "sliding_attention" in layer_types else None
    if isinstance(family.sliding_window, str) and hf.count("max_window_layers", default=28) >= num_layers:
        return None
    return window


def _read_rope(hf: _Settings, stated_max_positions: int) -> RopeConfig:
    """From `rope_theta` and `rope_scaling`, or from `rope_parameters`, which has both."""
    section = hf.section("rope_scaling") or hf.section("rope_parameters")
    theta = hf.number("rope_theta", default=_DEFAULT_THETA)
    if section is None:
        return RopeConfig(theta, stated_max_positions)
    type_key = "rope_type" if section.values.get("rope_type") is not None else "type"
    rope_type = section.values.get(type_key, "default")
    if rope_type not in ROPE_TYPES:
        raise section.error(type_key, f"{rope_type!r} is not known; known are {_listed(ROPE_TYPES)}")
    if any(isinstance(value, dict) for value in section.values.values()):
        raise hf.error(section.within.rstrip("."), "settings per kind of layer are not supported")
    if section.number("partial_rotary_factor", default=hf.number("partial_rotary_factor", default=1.0)) != 1:
        raise section.error("partial_rotary_factor", "rotating a part of each head is not supported")
    theta = section.number("rope_theta", default=theta)
    if rope_type == "default":
        return RopeConfig(theta, stated_max_positions)
    if rope_type in {"linear", "dynamic"}:
        return RopeConfig(theta, stated_max_positions, rope_type, section.number("factor"))
    outer = hf.count("original_max_position_embeddings", default=stated_max_positions)
    original = section.count("original_max_position_embeddings", default=outer)
    if rope_type == "llama3":
        low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
        if high <= low:
            raise section.error("high_freq_factor", f"{high:g} must be greater than low_freq_factor={low:g}")
        factor = section.number("factor")
        return RopeConfig(theta, original, rope_type, factor, low_freq_factor=low, high_freq_factor=high)
    return RopeConfig(
        theta,
        original,
        rope_type,
        section.number("factor", default=stated_max_positions / original if stated_max_positions > original else None),
        beta_fast=section.number("beta_fast", default=32.0),
        beta_slow=section.number("beta_slow", default=1.0),
        attention_factor=section.optional_number("attention_factor"),
        mscale=section.optional_number("mscale"),
        mscale_all_dim=section.optional_number("mscale_all_dim"),
        truncate=section.optional_flag("truncate") is not False,
    )


def _first(*candidates: list[int]) -> int | None:
    return next((ids[0] for ids in candidates if ids), None)


def _listed(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
