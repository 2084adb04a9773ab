"""What a start makes of what it finds: ops first, then the model with its real weights, on an emulated chip."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from tests.support.checkpoints import make_checkpoint
from text_generation_kernels.npu.device import NpuDevice
from text_generation_kernels.npu_probe import load_torch_npu
from text_generation_npu_emulator import emulated_npu
from text_generation_server.model_config import ModelConfig
from text_generation_server.models.causal_lm import CausalLM
from text_generation_server.models.loading import load_model
from text_generation_server.parallel import LoneRank
from text_generation_server.selfcheck.check import SelfCheck, SelfCheckFailed
from text_generation_server.selfcheck.kept import Subject
from text_generation_server.selfcheck.sizes import sizes_of

CHIPS = ("Ascend910PremiumA", "Ascend310P3", "Ascend910B4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(
        tmp_path_factory.mktemp("model"),
        hidden_size=128,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=128,
        intermediate_size=128,
        num_hidden_layers=3,
        dtype="float16",
    )


@contextmanager
def loaded(chip: str, folder: Path, faults: str = "") -> Iterator[tuple[CausalLM, SelfCheck]]:
    with emulated_npu(chip, faults=faults):
        device = NpuDevice(load_torch_npu(), 0)
        config, block_size = ModelConfig.from_hf(folder), device.default_block_size
        model = load_model(folder, device, LoneRank(), config=config, dtype=device.ops.activation_dtype)
        subject = Subject(device, sizes_of(config, 0, 1, block_size), folder, 0, 1, "auto")
        yield model, SelfCheck(subject, LoneRank(), kept=None)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_sound_model_is_as_on_the_cpu(chip: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with loaded(chip, folder) as (model, check):
        check.check_ops()
        verdict = check.check_model(model, folder)
    parts = {finding.part: finding for finding in verdict.model}
    assert set(parts) == {"a prompt in pieces", "the embedding", "the head", "layer 0", "layer 1", "layer 2"}
    assert all(finding.error < 0.5 and finding.wrong is None for finding in verdict.model)
    assert parts["layer 2"].largest > 0
    assert f"self-check of {chip}: 12 ops in" in caplog.text
    assert verdict.preferred == ()


def test_a_damaged_weight_is_found_in_its_layer(folder: Path) -> None:
    with loaded("Ascend910B4", folder) as (model, check):
        check.check_ops()
        weight: Tensor = model.layers[1].mlp.down.weight.data
        weight[:, :8].zero_()
        with pytest.raises(SelfCheckFailed, match=r"layer 1 is off by .* times what is allowed .* no other way"):
            check.check_model(model, folder)


def test_a_damaged_embedding_is_found(folder: Path) -> None:
    with loaded("Ascend910B4", folder) as (model, check):
        check.check_ops()
        table = model.embedding.table
        assert isinstance(table, Tensor)
        table.copy_(table.roll(1, dims=0))
        with pytest.raises(SelfCheckFailed, match="the embedding is off by"):
            check.check_model(model, folder)


@pytest.mark.parametrize("chip", CHIPS)
def test_an_op_that_only_the_model_shows_to_be_wrong_is_replaced(
    chip: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # As if its samples had been right: they are not looked at here.
    with loaded(chip, folder, "npu_rms_norm=noise") as (model, check):
        verdict = check.check_model(model, folder)
        assert verdict.preferred == (("rms_norm", "composed"),)
        assert all(finding.wrong is None for finding in verdict.model)
    assert f"the model is wrong on {chip}, though each op is right" in caplog.text
    assert "using composed for rms_norm" in caplog.text


def test_memory_that_runs_out_is_no_wrong_op(folder: Path) -> None:
    with emulated_npu("Ascend910B4", memory_mb=24):
        device = NpuDevice(load_torch_npu(), 0)
        sizes = sizes_of(ModelConfig.from_hf(folder), 0, 1, device.default_block_size)
        sizes = replace(sizes, hidden_size=4096, intermediate_size=4096)
        check = SelfCheck(Subject(device, sizes, None, 0, 1, "auto"), LoneRank(), kept=None)
        with pytest.raises(SelfCheckFailed, match="memory of Ascend910B4 runs out"):
            check.check_ops()
