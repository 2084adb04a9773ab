"""Logits against transformers: the same tiny checkpoint in float32, through the paged cache, however a step is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.server.models.stepping import Row, Stepper, load, prefill, random_tokens
from tests.support.checkpoints import FAMILIES, Family, make_checkpoint

TOLERANCE = 1e-4


def reference_logits(folder: Path, tokens: list[int], **options: Any) -> Tensor:
    """[num_tokens, vocab_size] of one full forward by transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **options)
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def assert_close(ours: Tensor | None, theirs: Tensor) -> None:
    assert ours is not None
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensor]:
    """A family's folder and transformers' logits of TOKENS."""
    family: Family = request.param
    folder = make_checkpoint(tmp_path_factory.mktemp(family), family, tokenizer=False)
    return folder, reference_logits(folder, TOKENS)


TOKENS = random_tokens(50)


def test_whole_prompt_matches(checkpoint: tuple[Path, Tensor]) -> None:
    folder, expected = checkpoint
    assert_close(prefill(load(folder), TOKENS), expected)


def test_prompt_then_decode_steps_match(checkpoint: tuple[Path, Tensor]) -> None:
    folder, expected = checkpoint
    stepper, row = Stepper(load(folder)), Row()
    assert_close(stepper.step([(row, TOKENS[:30])])[0], expected[:30])
    for position in range(30, 50):
        assert_close(stepper.step([(row, TOKENS[position : position + 1])])[0], expected[position : position + 1])


def test_prompt_in_chunks_matches(checkpoint: tuple[Path, Tensor]) -> None:
    folder, expected = checkpoint
    stepper, row = Stepper(load(folder)), Row()
    for start, stop in [(0, 1), (1, 16), (16, 33), (33, 50)]:
        assert_close(stepper.step([(row, TOKENS[start:stop])])[0], expected[start:stop])


def test_rows_of_one_step_do_not_see_each_other(checkpoint: tuple[Path, Tensor]) -> None:
    """A decode row, a chunk and a fresh prompt share a step; each gets what it would get alone."""
    folder, expected = checkpoint
    stepper = Stepper(load(folder))
    decoding, chunked, fresh = Row(), Row(), Row()
    stepper.step([(decoding, TOKENS[:40]), (chunked, TOKENS[:7])])
    one, chunk, prompt = stepper.step([(decoding, TOKENS[40:41]), (chunked, TOKENS[7:20]), (fresh, TOKENS[:17])])
    assert_close(one, expected[40:41])
    assert_close(chunk, expected[7:20])
    assert_close(prompt, expected[:17])


VARIANTS: list[tuple[Family, dict[str, Any]]] = [
    ("llama", {"head_dim": 32}),
    ("llama", {"attention_bias": True}),
    ("llama", {"mlp_bias": True}),
    ("llama", {"num_key_value_heads": 4}),
    ("llama", {"num_key_value_heads": 1}),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"rms_norm_eps": 0.1}),
    ("mistral", {"head_dim": 8}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen3", {"attention_bias": True, "head_dim": 32}),
]


@pytest.mark.parametrize(("family", "config"), VARIANTS, ids=str)
def test_variant_matches(family: Family, config: dict[str, Any], tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, family, tokenizer=False, **config)
    assert_close(prefill(load(folder), TOKENS), reference_logits(folder, TOKENS))


LONG = random_tokens(150)
ROPE: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize("name", ROPE)
def test_rope_scaling_matches_past_the_original_length(name: str, tmp_path: Path) -> None:
    """Case G29."""
    rope = {"rope_theta": 10000.0, **ROPE[name]}
    folder = make_checkpoint(
        tmp_path, "llama", tokenizer=False, max_position_embeddings=64, rope_parameters=rope, scale=0.5
    )
    expected = reference_logits(folder, LONG)
    assert_close(prefill(load(folder, max_positions=256), LONG), expected)
    without = make_checkpoint(tmp_path / "plain", "llama", tokenizer=False, max_position_embeddings=64, scale=0.5)
    assert (reference_logits(without, LONG) - expected).abs().max() > 0.1, "the scaling made no difference to compare"


DYNAMIC = {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 2.0}


def test_dynamic_rope_within_the_original_length_is_unscaled(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, tokenizer=False, max_position_embeddings=64, rope_parameters=DYNAMIC)
    assert_close(prefill(load(folder, max_positions=64), LONG[:64]), reference_logits(folder, LONG[:64]))


def test_dynamic_rope_past_the_original_length_takes_the_base_of_the_limit(tmp_path: Path) -> None:
    """transformers chooses the base by the sequence; so a sequence as long as the limit has the same base."""
    folder = make_checkpoint(tmp_path, tokenizer=False, max_position_embeddings=64, rope_parameters=DYNAMIC)
    assert_close(prefill(load(folder, max_positions=150), LONG), reference_logits(folder, LONG))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_asked_dtype_rounds_the_weights_and_nothing_else(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, tokenizer=False)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).float()
    with torch.no_grad():
        expected = reference(torch.tensor([TOKENS])).logits[0]
    model = load(folder, dtype=dtype)
    assert_close(prefill(model, TOKENS), expected)
    assert model.dtype == dtype


def test_checkpoint_stored_in_bfloat16_is_computed_in_float32(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, tokenizer=False, dtype="bfloat16")
    model = load(folder)
    assert_close(prefill(model, TOKENS), reference_logits(folder, TOKENS))
    assert model.dtype == torch.bfloat16


def test_logits_are_computed_for_the_rows_asked_for(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, tokenizer=False)
    model = load(folder)
    hidden = torch.randn(9, 64, generator=torch.Generator().manual_seed(0))
    logits = model.logits(hidden[[2, 7]])
    everything = model.logits(hidden)
    assert everything is not None
    assert_close(logits, everything[[2, 7]])


def test_step_without_tokens_gives_nothing(tmp_path: Path) -> None:
    (logits,) = Stepper(load(make_checkpoint(tmp_path, tokenizer=False))).step([(Row(), [])])
    assert logits is not None
    assert logits.shape == (0, 320)
