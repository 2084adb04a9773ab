"""config.json and generation_config.json as people have them: old and new spellings, and one clear line when wrong."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from text_generation_server.model_config import ModelConfig
from text_generation_server.models.loading import check_shards
from text_generation_server.sharding import ShardingError
from text_generation_server.weights import CheckpointError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 112,
    "vocab_size": 320,
    "max_position_embeddings": 2048,
}


def read(folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    """Read LLAMA with `changes`; a change to ... leaves the key out."""
    settings = {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(settings))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return ModelConfig.from_hf(folder)


def test_sparse_old_config_gets_the_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, num_key_value_heads=...)
    assert (config.num_kv_heads, config.head_dim, config.rms_norm_eps) == (4, 16, 1e-6)
    assert (config.rope.theta, config.rope.rope_type) == (10000.0, "default")
    assert config.max_position_embeddings == 2048
    assert (config.qkv_bias, config.o_bias, config.mlp_bias, config.qk_norm) == (False, False, False, False)
    assert (config.tie_word_embeddings, config.dtype, config.sliding_window) == (None, None, None)
    assert (config.eos_token_ids, config.bos_token_id, config.pad_token_id) == ((), None, None)


def test_head_dim_of_its_own_wins(tmp_path: Path) -> None:
    assert read(tmp_path, head_dim=32).head_dim == 32
    assert read(tmp_path, head_dim=None).head_dim == 16


@pytest.mark.parametrize(
    ("family", "changes", "biases"),
    [
        ("llama", {"attention_bias": True}, (True, True, False)),
        ("llama", {"mlp_bias": True}, (False, False, True)),
        ("mistral", {"sliding_window": None}, (False, False, False)),
        ("qwen2", {}, (True, False, False)),
        ("qwen3", {"attention_bias": True}, (True, True, False)),
    ],
)
def test_biases_are_what_the_family_has(
    family: str, changes: dict[str, Any], biases: tuple[bool, bool, bool], tmp_path: Path
) -> None:
    config = read(tmp_path, model_type=family, **changes)
    assert (config.qkv_bias, config.o_bias, config.mlp_bias) == biases
    assert config.qk_norm == (family == "qwen3")


@pytest.mark.parametrize(
    ("in_generation", "in_config", "expected"),
    [
        ([1, 4], 2, (1, 4, 2)),
        (2, [2, 3], (2, 3)),
        (None, 2, (2,)),
        (5, None, (5,)),
        (None, None, ()),
    ],
)
def test_end_tokens_of_both_files_count(
    in_generation: Any, in_config: Any, expected: tuple[int, ...], tmp_path: Path
) -> None:
    """Case G30."""
    config = read(tmp_path, {"eos_token_id": in_generation}, eos_token_id=in_config)
    assert config.eos_token_ids == expected


def test_pad_token_minus_one_is_none(tmp_path: Path) -> None:
    config = read(tmp_path, pad_token_id=-1, bos_token_id=1)
    assert (config.bos_token_id, config.pad_token_id) == (1, None)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_dtype_has_an_old_and_a_new_name(key: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {key: "bfloat16"}
    assert read(tmp_path, **changes).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_scaling": None, "rope_theta": 5e5}, ("default", 1, 5e5, 2048)),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5e5}, ("linear", 2, 5e5, 4096)),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4}}, ("dynamic", 4, 1e4, 8192)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, ("default", 1, 7, 2048)),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 7.0, "factor": 3}}, ("linear", 3, 7, 6144)),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8,
                    "low_freq_factor": 1,
                    "high_freq_factor": 4,
                    "original_max_position_embeddings": 512,
                }
            },
            ("llama3", 8, 1e4, 2048),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 1024}},
            ("yarn", 4, 1e4, 4096),
        ),
        ({"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 512}}, ("yarn", 4, 1e4, 2048)),
        ({"rope_scaling": {"type": "yarn", "factor": 2}}, ("yarn", 2, 1e4, 4096)),
    ],
)
def test_rope_is_read_in_every_spelling(
    changes: dict[str, Any], expected: tuple[str, float, float, int], tmp_path: Path
) -> None:
    """Case G29. Expected are type, factor, theta and the longest sequence."""
    config = read(tmp_path, **changes)
    rope = config.rope
    assert (rope.rope_type, rope.factor, rope.theta, config.max_position_embeddings) == expected


@pytest.mark.parametrize(
    ("rope_type", "factor", "expected"),
    [
        (None, None, ("default", 1.0, 2048)),
        ("linear", 2.0, ("linear", 2.0, 4096)),
        ("dynamic", None, ("dynamic", 1.0, 2048)),
        (None, 3.0, ("linear", 3.0, 6144)),
    ],
)
def test_command_line_overrides_rope(
    rope_type: str | None, factor: float | None, expected: tuple[str, float, int], tmp_path: Path
) -> None:
    config = read(tmp_path).with_rope_scaling(rope_type, factor)
    assert (config.rope.rope_type, config.rope.factor, config.max_position_embeddings) == expected


@pytest.mark.parametrize(
    ("rope_type", "factor", "message"),
    [
        ("yarn", 2.0, "--rope-scaling yarn is not known; known are linear and dynamic"),
        ("linear", 0.5, "--rope-factor 0.5 is too small; it must be at least 1"),
    ],
)
def test_wrong_override_is_refused(rope_type: str, factor: float, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path).with_rope_scaling(rope_type, factor)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"model_type": "mistral", "sliding_window": 512}, 512),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "mistral", "sliding_window": 4096}, None),
        ({"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": False}, None),
        ({"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": True, "max_window_layers": 1}, 512),
        ({"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": True, "max_window_layers": 2}, None),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 512,
                "use_sliding_window": True,
                "layer_types": ["full_attention", "sliding_attention"],
            },
            512,
        ),
        ({"model_type": "llama", "sliding_window": 512}, None),
    ],
)
def test_sliding_window_limits_the_length_and_says_so(
    changes: dict[str, Any], limit: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Full attention gives the same numbers only while everything fits in the window."""
    with caplog.at_level(logging.WARNING):
        config = read(tmp_path, **changes)
    assert config.max_position_embeddings == (limit or 2048)
    assert len(caplog.records) == (0 if limit is None else 1)
    if limit is not None:
        assert f"sequences are limited to {limit} tokens" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "gpt2"},
            "model_type: 'gpt2' is not supported; supported are llama, mistral, qwen2 and qwen3",
        ),
        ({"model_type": ...}, "model_type: must be a string, not None"),
        ({"hidden_size": ...}, "hidden_size: is missing; it must be a positive whole number"),
        ({"vocab_size": "many"}, "vocab_size: must be a positive whole number, not 'many'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: must be a positive whole number, not 0"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide num_attention_heads=4"),
        ({"head_dim": 15}, "head_dim: 15 is odd; rotary positions need an even one"),
        ({"rms_norm_eps": -1}, "rms_norm_eps: must be a positive number, not -1"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu' is not supported; supported is silu"),
        ({"attention_bias": "yes"}, "attention_bias: must be true or false, not 'yes'"),
        ({"eos_token_id": "</s>"}, "eos_token_id: must be a token id or a list of them, not '</s>'"),
        ({"torch_dtype": "int8"}, "torch_dtype: 'int8' is not supported; supported are float16, bfloat16 and float32"),
        (
            {"quantization_config": {"quant_method": "awq"}},
            "quantization_config: awq is not supported; use a checkpoint that is not quantized",
        ),
        (
            {"rope_scaling": {"rope_type": "nonsense"}},
            "rope_scaling.rope_type: 'nonsense' is not known; known are default, linear, dynamic, llama3 and yarn",
        ),
        (
            {"rope_parameters": {"type": "longrope"}},
            "rope_parameters.type: 'longrope' is not known; known are default, linear, dynamic, llama3 and yarn",
        ),
        ({"rope_scaling": "linear"}, "rope_scaling: must be an object or null, not 'linear'"),
        (
            {"rope_scaling": {"type": "linear"}},
            "rope_scaling.factor: is missing; it must be a positive number",
        ),
        (
            {"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}},
            "rope_scaling.high_freq_factor: 4 must be greater than low_freq_factor=4",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}},
            "rope_parameters: settings per kind of layer are not supported",
        ),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "rope_parameters.partial_rotary_factor: rotating a part of each head is not supported",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, **changes)
    assert str(caught.value) == f"{tmp_path / 'config.json'}: {message}"


def test_quantization_in_a_file_of_its_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "quantize_config.json").write_text('{"bits": 4}')
    with pytest.raises(CheckpointError, match=r"quantize_config\.json: gptq is not supported"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "{folder}: there is no config.json"),
        ("{", "{folder}/config.json: not valid JSON: "),
        ("[]", "{folder}/config.json: holds a list, not an object"),
    ],
)
def test_broken_config_file_is_one_line(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError) as caught:
        ModelConfig.from_hf(tmp_path)
    assert str(caught.value).startswith(message.format(folder=tmp_path))
    assert "\n" not in str(caught.value)


def test_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere: no such model folder"):
        ModelConfig.from_hf(tmp_path / "nowhere")


def test_shards_are_checked_from_the_config_alone(tmp_path: Path) -> None:
    """Case G27: before anything is loaded."""
    five = read(tmp_path, num_attention_heads=5, num_key_value_heads=5, hidden_size=80)
    check_shards(five, 1)
    with pytest.raises(ShardingError, match="num_attention_heads=5 is not divisible by num_shard=2"):
        check_shards(five, 2)
    with pytest.raises(ShardingError, match="intermediate_size=1 is smaller than num_shard=2; use --num-shard 1"):
        check_shards(read(tmp_path, intermediate_size=1), 2)
