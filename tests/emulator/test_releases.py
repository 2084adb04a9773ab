"""A model on every family under the torch_npu releases whose signatures are known: its text is the model's own.

Which ops are chosen is computed from each release's schemas; what a release lacks is left out with a reason. The
witness is transformers in float32 on the CPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulator.conftest import MachineMaker
from tests.kernels.npu.fake_module import described_ops
from tests.kernels.npu.releases import RELEASES
from tests.support.checkpoints import make_checkpoint
from tests.support.inprocess import InProcessReplica, load_engine
from tests.support.witness import Witness
from text_generation_kernels.npu.device import NpuDevice, NpuOptions
from text_generation_kernels.npu.graphs import CapturedDecode
from text_generation_kernels.npu_probe import load_torch_npu
from text_generation_router.scheduling.request import Request

CHIPS = {
    "A1": "Ascend910PremiumA",
    "310P": "Ascend310P3",
    "A2": "Ascend910B4",
    "A3": "Ascend910_9391",
    "A5": "Ascend950PR",
}
NEAR_TIE = 0.02
# Longer than a block of 128 tokens and than two steps of 64, short, and the long one's beginning with another end.
PROMPTS = (tuple(range(4, 204)), (7, 8, 9), (*range(4, 164), 250))
NUM_NEW_TOKENS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 128, which the fused ops take, two over each key head."""
    return make_checkpoint(
        tmp_path_factory.mktemp("model"),
        hidden_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=128,
        intermediate_size=256,
        num_hidden_layers=2,
    )


@pytest.fixture(scope="module")
def witness(folder: Path) -> Witness:
    return Witness(folder)


@pytest.mark.slow
@pytest.mark.parametrize("family", CHIPS)
@pytest.mark.parametrize("release", RELEASES)
def test_a_release_serves_a_family_with_the_ops_that_it_has(
    make_machine: MachineMaker, family: str, release: str, folder: Path, witness: Witness
) -> None:
    machine = make_machine(CHIPS[family], torch_npu=release.partition(".post")[0])
    device = NpuDevice(load_torch_npu(), 0, NpuOptions(graph_sizes=(1, 2, 4)))
    assert device.family.name == family

    # What the registry of this release gives is what its description says, with a reason for all that is left out.
    described = described_ops(family, release)
    for op in device.ops.choices:
        found = device.ops.candidates(op)
        assert found == described.candidates(op)
        assert any(candidate.refused is None for candidate in found)
        for candidate in found:
            assert candidate.refused is None or "the installed torch_npu" in candidate.refused

    replica = InProcessReplica(
        load_engine(folder, device.default_block_size, device), num_blocks=12, max_sequences=4, max_step_tokens=64
    )
    for prompt in PROMPTS:
        answer = replica.answer(Request(prompt, NUM_NEW_TOKENS))
        witness.assert_greedy(prompt, [event.token_id for event in answer], NEAR_TIE)
    assert machine.counters.compilations == 0
    has_graphs = isinstance(replica.engine._captured, CapturedDecode)
    # 2.1 lacks the form of the fused attention whose lengths can be refreshed between replays.
    assert has_graphs == (family in ("A2", "A3", "A5") and release != RELEASES[0])
