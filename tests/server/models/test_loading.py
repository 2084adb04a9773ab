"""From a folder to a model: which weights become what, and what is said when they do not fit."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.server.models.stepping import load, prefill, random_tokens
from tests.support.checkpoints import Layout, make_checkpoint
from text_generation_kernels.cpu.device import CpuDevice
from text_generation_server.model_config import ModelConfig
from text_generation_server.models.loading import load_model
from text_generation_server.parallel import LoneRank
from text_generation_server.weights import CheckpointError

TOKENS = random_tokens(20)
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def logits_of(folder: Path) -> Tensor:
    logits = prefill(load(folder), TOKENS)
    assert logits is not None
    return logits


def rewrite(folder: Path, config: dict[str, Any], **weights: Tensor | None) -> Path:
    """Change config.json and model.safetensors; a value of None takes the key out."""
    path = folder / "config.json"
    settings = {**json.loads(path.read_text()), **config}
    path.write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))
    tensors = {**load_file(folder / "model.safetensors"), **weights}
    save_file({k: v for k, v in tensors.items() if v is not None}, folder / "model.safetensors")
    return folder


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "tied", tie_word_embeddings=True, tokenizer=False)


def test_tied_in_every_form_gives_the_same(tied: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Case G25: no head; config silent and no head; both shipped; and only the head shipped."""
    expected = logits_of(tied)
    embedding = load_file(tied / "model.safetensors")[EMBEDDING]
    assert torch.equal(logits_of(rewrite(tied, {"tie_word_embeddings": None})), expected)
    assert torch.equal(logits_of(rewrite(tied, {"tie_word_embeddings": True}, **{HEAD: embedding})), expected)
    assert torch.equal(logits_of(rewrite(tied, {}, **{EMBEDDING: None})), expected)
    assert caplog.records == []


def test_tied_weights_are_held_once(tied: Path) -> None:
    model = load(tied)
    assert model.embedding.table is model.head.weight


def test_tied_config_with_a_different_head_uses_the_head_and_warns(
    tied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    embedding = load_file(tied / "model.safetensors")[EMBEDDING]
    expected = 2 * logits_of(tied)
    torch.testing.assert_close(logits_of(rewrite(tied, {}, **{HEAD: 2 * embedding})), expected)
    assert "config.json ties lm_head.weight to model.embed_tokens.weight, but their values differ" in caplog.text


def test_silent_config_with_a_head_is_not_tied(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, tokenizer=False)
    expected = logits_of(folder)
    assert torch.equal(logits_of(rewrite(folder, {"tie_word_embeddings": None})), expected)


def test_missing_head_of_an_untied_model_is_an_error(tied: Path) -> None:
    rewrite(tied, {"tie_word_embeddings": False})
    with pytest.raises(CheckpointError) as caught:
        load(tied)
    assert str(caught.value) == f"{tied}: the weights have no tensor lm_head.weight"


@pytest.mark.parametrize("layout", ["sharded", "unindexed", "bin", "sharded_bin"])
def test_every_layout_gives_the_same_logits(layout: Layout, tmp_path: Path) -> None:
    """Case G26."""
    one_file = make_checkpoint(tmp_path / "one", tokenizer=False)
    folder = make_checkpoint(tmp_path / layout, layout=layout, tokenizer=False)
    assert torch.equal(logits_of(folder), logits_of(one_file))


def test_inner_model_without_prefix_loads(tied: Path) -> None:
    expected = logits_of(tied)
    tensors = load_file(tied / "model.safetensors")
    save_file({k.removeprefix("model."): v for k, v in tensors.items()}, tied / "model.safetensors")
    assert torch.equal(logits_of(tied), expected)


def test_missing_tensor_names_tensor_and_folder(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    folder = rewrite(make_checkpoint(tmp_path, tokenizer=False), {}, **{name: None})
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert str(caught.value) == f"{folder}: the weights have no tensor {name}"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"vocab_size": 321}, f"{EMBEDDING} has shape [320, 64], but config.json makes it [321, 64]"),
        (
            {"num_key_value_heads": 4},
            "model.layers.0.self_attn.k_proj.weight has shape [32, 64], but config.json makes it [64, 64]",
        ),
        (
            {"intermediate_size": 100},
            "model.layers.0.mlp.gate_proj.weight has shape [112, 64], but config.json makes it [100, 64]",
        ),
    ],
)
def test_shape_that_config_contradicts_names_both(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = rewrite(make_checkpoint(tmp_path, tokenizer=False), config)
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert str(caught.value) == f"{folder}: {message}"


def test_tensor_without_a_use_is_mentioned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A bias that config.json does not announce would make wrong text silently."""
    bias = {"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}
    rewrite(make_checkpoint(tmp_path, tokenizer=False), {}, **bias)
    load(tmp_path)
    assert "the model has no use for the tensors model.layers.0.self_attn.q_proj.bias" in caplog.text


def test_stored_rotary_frequencies_are_not_worth_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    load(rewrite(make_checkpoint(tmp_path, tokenizer=False), {}, **stored))
    assert caplog.records == []


def test_value_that_float16_cannot_hold_is_refused(tmp_path: Path) -> None:
    folder = rewrite(make_checkpoint(tmp_path, tokenizer=False), {}, **{"model.norm.weight": torch.full((64,), 1e5)})
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has values that float16 cannot hold"):
        load(folder, dtype=torch.float16)


def test_values_that_float16_cannot_hold_are_clamped_and_counted_where_there_is_nothing_wider(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = rewrite(make_checkpoint(tmp_path, tokenizer=False), {}, **{"model.norm.weight": torch.full((64,), -1e6)})
    device = CpuDevice()
    device.has_bfloat16 = False  # as on a 910A
    model = load_model(folder, device, LoneRank(), dtype=torch.float16, on_progress=lambda done, total: None)
    assert torch.equal(model.norm, torch.full((64,), -65504.0))
    assert "64 values in model.norm.weight are beyond float16 and set to +-65504" in caplog.text


def test_progress_counts_the_layers(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    folder = make_checkpoint(tmp_path, tokenizer=False, num_hidden_layers=3)
    load_model(folder, CpuDevice(), LoneRank(), on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_no_bar_is_drawn_where_nobody_watches(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = make_checkpoint(tmp_path, tokenizer=False)
    capfd.readouterr()
    load_model(folder, CpuDevice(), LoneRank())
    assert capfd.readouterr().err == ""


def test_overridden_config_is_what_is_built(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_checkpoint(tmp_path, tokenizer=False)
    with caplog.at_level(logging.WARNING):
        model = load(folder, config=ModelConfig.from_hf(folder).with_rope_scaling("linear", 2.0))
    assert model.max_positions == 1024
    assert model.rope.cos.shape == (1024, 8)
    assert model.num_layers == 2
    assert (model.num_kv_heads_local, model.head_dim) == (2, 16)


def test_length_past_a_sliding_window_is_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "mistral", tokenizer=False, sliding_window=100)
    assert load(folder).max_positions == 100
    with pytest.raises(CheckpointError, match="use --max-total-tokens 100 or less, not 101"):
        load(folder, max_positions=101)


def test_length_past_what_the_model_was_made_for_is_allowed_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_checkpoint(tmp_path, tokenizer=False, max_position_embeddings=64)
    assert load(folder, max_positions=65).max_positions == 65
    assert "sequences of 65 tokens are allowed, but the model was made for 64" in caplog.text


def test_weights_do_not_change_with_their_file(tmp_path: Path) -> None:
    """A download over a folder that is being served must not reach the model."""
    folder = make_checkpoint(tmp_path, tokenizer=False)
    model = load(folder)
    before = prefill(model, TOKENS)
    assert before is not None
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 10)
        file.write(bytes(path.stat().st_size * 9 // 10))
    after = prefill(model, TOKENS)
    assert after is not None
    assert torch.equal(after, before)
