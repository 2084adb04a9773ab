"""Captured steps that keep what they were captured with are told from those that do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.support.checkpoints import make_checkpoint
from text_generation_kernels.cpu.device import CpuDevice
from text_generation_kernels.interface import CapturedStep, KVCache, StepInputs
from text_generation_server.models.causal_lm import CausalLM
from text_generation_server.models.loading import load_model
from text_generation_server.parallel import LoneRank
from text_generation_server.selfcheck.replays import wrong_replay

BLOCK_SIZE = 16


class Replay(CapturedStep):
    """What a graph does that was captured in the middle of serving: `keeps` names what it does not read anew."""

    max_tokens = max_sampled = 4

    def __init__(self, model: CausalLM, caches: Sequence[KVCache], keeps: str | None) -> None:
        self._model = model
        self._caches = caches
        self._keeps = keeps
        self._first: StepInputs | None = None

    def __call__(self, inputs: StepInputs) -> Tensor:
        self._first = self._first or inputs
        if self._keeps == "token_ids":
            inputs = replace(inputs, token_ids=self._first.token_ids)
        elif self._keeps is not None:
            kept = {self._keeps: getattr(self._first.step, self._keeps)}
            inputs = replace(inputs, step=replace(inputs.step, **kept))
        return self._model.sampled_logits(inputs, self._caches)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    return load_model(make_checkpoint(tmp_path_factory.mktemp("model")), CpuDevice(native=False), LoneRank())


@torch.inference_mode()
def checked(model: CausalLM, keeps: str | None, num_blocks: int = 4) -> str | None:
    ops = model.device.ops
    caches = [
        ops.new_kv_cache(num_blocks, BLOCK_SIZE, model.num_kv_heads_local, model.head_dim)
        for _ in range(model.num_layers)
    ]
    return wrong_replay(model, Replay(model, caches, keeps), caches, BLOCK_SIZE)


@pytest.mark.parametrize("num_blocks", [1, 2, 4])
def test_replays_that_read_all_anew_are_right(model: CausalLM, num_blocks: int) -> None:
    assert checked(model, None, num_blocks) is None


@pytest.mark.parametrize("keeps", ["kv_lens", "positions", "token_ids"])
@pytest.mark.parametrize("num_blocks", [1, 4])
def test_a_replay_that_keeps_something_is_wrong(model: CausalLM, keeps: str, num_blocks: int) -> None:
    wrong = checked(model, keeps, num_blocks)
    assert wrong is not None
    assert wrong.startswith("logits of rows of ")
