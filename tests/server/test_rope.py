"""Rotary tables against those of transformers, at positions within and far past the original length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.native.library import KernelError
from text_generation_server.rope import RopeConfig, RopeTable, attention_factor

ORIGINAL = 256
CASES: list[tuple[RopeConfig, dict[str, Any]]] = [
    (RopeConfig(1e4, ORIGINAL), {"rope_type": "default"}),
    (RopeConfig(1e4, ORIGINAL, "linear", 4.0), {"rope_type": "linear", "factor": 4.0}),
    (
        RopeConfig(5e5, ORIGINAL, "llama3", 8.0, low_freq_factor=1.0, high_freq_factor=4.0),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": ORIGINAL,
        },
    ),
    (
        RopeConfig(1e4, ORIGINAL, "yarn", 4.0),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    ),
    (
        RopeConfig(1e6, ORIGINAL, "yarn", 4.0, beta_fast=16.0, beta_slow=2.0, truncate=False, attention_factor=1.5),
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": ORIGINAL,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "truncate": False,
            "attention_factor": 1.5,
        },
    ),
    (
        RopeConfig(1e4, ORIGINAL, "yarn", 40.0, mscale=1.0, mscale_all_dim=0.7),
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": ORIGINAL,
            "mscale": 1.0,
            "mscale_all_dim": 0.7,
        },
    ),
]


def transformers_table(theta: float, parameters: dict[str, Any], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(cos, sin) of positions [0, length), each [length, 32]; transformers writes each half twice."""
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=8192 if parameters["rope_type"] == "llama3" else ORIGINAL,
        rope_parameters={"rope_theta": theta, **parameters},
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.empty(1), torch.arange(length)[None])
    return cos[0, :, :32], sin[0, :, :32]


@pytest.mark.parametrize(("ours", "theirs"), CASES, ids=lambda case: getattr(case, "rope_type", ""))
def test_table_equals_transformers(ours: RopeConfig, theirs: dict[str, Any]) -> None:
    table, factor = RopeTable(ours, 64, 4096, CpuDevice()), attention_factor(ours)
    cos, sin = transformers_table(ours.theta, theirs, 4096)
    torch.testing.assert_close(table.cos * factor, cos, rtol=0, atol=5e-5)
    torch.testing.assert_close(table.sin * factor, sin, rtol=0, atol=5e-5)
    assert max(table.cos.abs().max(), table.sin.abs().max()) <= 1  # what the NPU's rotations take


@pytest.mark.parametrize("length", [ORIGINAL // 2, ORIGINAL, ORIGINAL * 3])
def test_dynamic_table_is_transformers_for_a_sequence_of_the_limit(length: int) -> None:
    table = RopeTable(RopeConfig(1e4, ORIGINAL, "dynamic", 2.0), 64, length, CpuDevice())
    cos, sin = transformers_table(1e4, {"rope_type": "dynamic", "factor": 2.0}, length)
    torch.testing.assert_close(table.cos, cos, rtol=0, atol=5e-5)
    torch.testing.assert_close(table.sin, sin, rtol=0, atol=5e-5)


def test_lookup_gives_a_row_for_each_token() -> None:
    table = RopeTable(RopeConfig(1e4, ORIGINAL), 64, 16, CpuDevice())
    cos, sin = table.at(torch.tensor([3, 0, 3]))
    assert torch.equal(cos, table.cos[[3, 0, 3]])
    assert torch.equal(sin, table.sin[[3, 0, 3]])


def test_position_past_the_table_is_an_error() -> None:
    table = RopeTable(RopeConfig(1e4, ORIGINAL), 64, 16, CpuDevice())
    with pytest.raises((IndexError, KernelError)):
        table.at(torch.tensor([16]))
