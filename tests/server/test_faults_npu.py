"""Faults of the emulated chips end requests instead of giving the same token for ever, whatever a chip makes of NaN."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.support.checkpoints import make_checkpoint
from tests.support.inprocess import InProcessReplica, load_engine
from text_generation_kernels.npu.device import NpuDevice
from text_generation_kernels.npu_probe import load_torch_npu
from text_generation_npu_emulator import emulated_npu
from text_generation_router.scheduling.request import Request

BROKEN, HUGE = 300, 301  # tokens
A1, A2 = "Ascend910PremiumA", "Ascend910B4"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reading one token gives NaN; a sum that holds another one overflows float16 in the head, and in no other."""
    folder = make_checkpoint(tmp_path_factory.mktemp("broken"), seed=3, max_position_embeddings=256)
    weights = load_file(folder / "model.safetensors")
    embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    embedding[BROKEN] = math.nan
    for name, weight in weights.items():  # nothing but that token has a part in this dimension
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight[7] = 0
    embedding[:, 7] = 0
    embedding[HUGE, 7] = 3000
    head[:, 7] = 0
    head[HUGE, 7] = 60000
    weights["model.norm.weight"][7] = 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def replica_on(folder: Path) -> InProcessReplica:
    device = NpuDevice(load_torch_npu(), 0)
    return InProcessReplica(
        load_engine(folder, 128, device), num_blocks=8, max_sequences=4, max_step_tokens=32, max_total_tokens=256
    )


@pytest.mark.parametrize(
    ("chip", "token_id", "seen"),
    [
        (A2, BROKEN, "NaN in 320 of 320 logits"),
        (A2, HUGE, "+inf in 1 of 320 logits"),
        (A1, HUGE, "+-65504, which is what an overflow becomes there, in 1 of 320 logits"),
    ],
)
def test_what_a_chip_makes_of_nan_and_overflow_ends_that_request_alone(
    folder: Path, chip: str, token_id: int, seen: str
) -> None:
    good = Request(tuple(range(20, 40)), 6)
    with emulated_npu(chip):
        alone = replica_on(folder).answer(good)
        replica = replica_on(folder)
        broken = replica.submit(Request((5, 6, token_id), 20))
        neighbour = replica.submit(good)
        replica.run()
    assert replica.faults[id(broken)].startswith(
        f"the model gave {seen}, by which no token can be chosen (step 0, {chip}"
    )
    assert list(replica.faults) == [id(broken)]
    assert [event.token_id for event in replica.events[id(neighbour)]] == [event.token_id for event in alone]


@pytest.mark.parametrize("chip", [A1, A2])
def test_an_op_that_gives_zeros_from_some_moment_on_ends_what_runs_then(folder: Path, chip: str) -> None:
    with emulated_npu(chip) as machine:
        replica = replica_on(folder)
        early = replica.answer(Request((5, 6, 7), 4))
        caught = replica.submit(Request((8, 9, 10), 40))
        for _ in range(8):
            replica.tick()
        received = len(replica.events[id(caught)])
        machine.inject("npu_rms_norm=zeros, npu_add_rms_norm=zeros")
        replica.run()
    assert len(early) == 4
    assert received > 4
    assert len(replica.events[id(caught)]) <= received + 1
    assert replica.faults[id(caught)].startswith("the model gave the same value in all 320 logits")
