"""What users of other servers met on Ascend chips (cases G46, G47, G49 and G50), on emulated ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.emulator.conftest import MachineMaker
from tests.support.checkpoints import make_checkpoint
from tests.support.inprocess import InProcessReplica
from tests.support.witness import Witness
from text_generation_kernels.npu.device import NpuDevice, NpuOptions
from text_generation_kernels.npu_probe import load_torch_npu
from text_generation_router.scheduling.request import Request, SamplingParameters
from text_generation_server.engine import Engine
from text_generation_server.models.loading import load_model
from text_generation_server.parallel import LoneRank
from text_generation_server.sampling import Sampler
from text_generation_server.sampling.penalties import apply_repetition_penalties

CHIPS = ("Ascend910PremiumA", "Ascend310P3", "Ascend910B4")
NEAR_TIE = 0.02
BFLOAT16_NEAR_TIE = 0.2  # eight bits instead of eleven
PROMPT = tuple(range(4, 44))


def replica_of(
    folder: Path, options: NpuOptions | None = None, *, max_total_tokens: int = 256, max_step_tokens: int = 512
) -> InProcessReplica:
    device, group = NpuDevice(load_torch_npu(), 0, options), LoneRank()
    model = load_model(folder, device, group, dtype=device.ops.activation_dtype)
    engine = Engine(model, device, group, Sampler(device.ops), device.default_block_size)
    return InProcessReplica(
        engine, num_blocks=24, max_sequences=8, max_total_tokens=max_total_tokens, max_step_tokens=max_step_tokens
    )


def tokens(replica: InProcessReplica, request: Request) -> list[int]:
    return [event.token_id for event in replica.answer(request)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stored in bfloat16, with heads of 128."""
    return make_checkpoint(
        tmp_path_factory.mktemp("model"),
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=128,
        max_position_embeddings=4096,
        dtype="bfloat16",
    )


@pytest.mark.parametrize("soc_name", CHIPS)
def test_a_bfloat16_checkpoint_is_served_in_what_the_chip_has(
    make_machine: MachineMaker, soc_name: str, folder: Path
) -> None:
    """G46: an emulated 910A or 310P refuses any bfloat16 that slips in through a weight, a buffer or a rope table."""
    make_machine(soc_name)
    replica = replica_of(folder)
    assert {cache.k.dtype for cache in replica.engine._kv_caches} == {torch.float16}
    Witness(folder).assert_greedy(PROMPT, tokens(replica, Request(PROMPT, 6)), NEAR_TIE)


@pytest.mark.parametrize(
    ("soc_name", "served_in"),
    [
        ("Ascend910PremiumA", torch.float16),
        ("Ascend310P3", torch.float16),
        ("Ascend910B4", torch.bfloat16),
        ("Ascend910_9391", torch.bfloat16),
    ],
)
def test_by_default_bfloat16_is_kept_where_the_chip_has_it(
    make_machine: MachineMaker, soc_name: str, served_in: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    """G46: a chip without it falls back to float16 and says so once."""
    make_machine(soc_name)
    torch_npu = load_torch_npu()
    options = NpuOptions(model_dtype=torch.bfloat16)
    devices = [NpuDevice(torch_npu, index, options) for index in range(2)]
    assert [device.ops.activation_dtype for device in devices] == [served_in, served_in]
    warning = f"{soc_name} has no bfloat16, which the model was made in: it is served in float16"
    assert caplog.text.count(warning) == (1 if served_in == torch.float16 else 0)
    for stored in (torch.float16, torch.float32, None):
        device = NpuDevice(torch_npu, 0, NpuOptions(model_dtype=stored))
        assert device.ops.activation_dtype == torch.float16


def test_a_910b_keeps_bfloat16_where_it_is_asked_for(make_machine: MachineMaker, folder: Path) -> None:
    """G46."""
    make_machine("Ascend910B4")
    replica = replica_of(folder, NpuOptions(dtype=torch.bfloat16))
    assert {cache.k.dtype for cache in replica.engine._kv_caches} == {torch.bfloat16}
    Witness(folder).assert_greedy(PROMPT, tokens(replica, Request(PROMPT, 6)), BFLOAT16_NEAR_TIE)


@pytest.mark.parametrize(
    ("in_machine", "listed", "cards"), [(8, "4,5", [4, 5]), (3, "0,1,3,4", [0, 1]), (2, "7", []), (2, "1", [1])]
)
def test_shard_i_has_the_i_th_visible_card(
    make_machine: MachineMaker, in_machine: int, listed: str, cards: list[int]
) -> None:
    """G47: counted from 0 inside; more shards than the runtime has left are refused with both numbers."""
    machine = make_machine(devices=in_machine, environment={"ASCEND_RT_VISIBLE_DEVICES": listed})
    assert machine.cards == cards
    for rank in range(len(cards)):
        assert NpuDevice(load_torch_npu(), rank).torch_device == torch.device("npu", rank)
    with pytest.raises(ValueError, match=f"shard {len(cards)} wants an NPU of its own, and {len(cards)} are visible"):
        NpuDevice(load_torch_npu(), len(cards))


@pytest.mark.parametrize("soc_name", CHIPS)
def test_a_draw_depends_on_its_own_seed_and_place_alone(
    make_machine: MachineMaker, soc_name: str, folder: Path
) -> None:
    """G49: no generator of the device is used, and batch mates change nothing."""
    make_machine(soc_name)
    requests = [
        Request(tuple(range(4, 10 + 3 * seed)), 5, sampling=SamplingParameters(do_sample=True, top_p=0.9, seed=seed))
        for seed in range(1, 6)
    ]
    alone = [tokens(replica_of(folder), request) for request in requests]
    assert len({tuple(answer) for answer in alone}) > 1
    crowd = replica_of(folder)
    submitted = [crowd.submit(request) for request in requests]
    crowd.run()
    assert [[event.token_id for event in crowd.events[id(sequence)]] for sequence in submitted] == alone


def test_a_repetition_penalty_over_a_long_context_in_a_batch(make_machine: MachineMaker) -> None:
    """G49: 8 rows of 131072 tokens each, as the CPU computes it."""
    make_machine("Ascend910B4")
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(8, 500, generator=generator)
    histories = [torch.randint(0, 400, (131072,), generator=generator) for _ in range(8)]
    penalties = [1.0 + 0.1 * row for row in range(8)]

    def penalized(device: str) -> Tensor:
        changed = scores.to(device, copy=True)
        apply_repetition_penalties(changed, range(8), [history.to(device) for history in histories], penalties)
        return changed.cpu()

    torch.testing.assert_close(penalized("npu"), penalized("cpu"))


@pytest.mark.parametrize("soc_name", CHIPS)
def test_a_prompt_longer_than_any_built_in_mask(make_machine: MachineMaker, soc_name: str, folder: Path) -> None:
    """G49: the compressed mask has 2048 rows; this prompt has more, in one step and in chunks."""
    make_machine(soc_name)
    prompt = tuple(random.Random(0).choices(range(4, 300), k=2100))
    witness = Witness(folder)
    for step_tokens in (4096, 1500):
        replica = replica_of(folder, max_total_tokens=2200, max_step_tokens=step_tokens)
        answer = tokens(replica, Request(prompt, 2))
        witness.assert_greedy(prompt, answer, NEAR_TIE)


@pytest.mark.parametrize("soc_name", CHIPS)
@pytest.mark.parametrize(
    ("hidden_size", "said"),
    [(64, "NZ 8/9 (1 ND: its rows are looked up, as embeddings)"), (72, "NZ 0/9 (9 ND: 72 % 16 != 0)")],
)
def test_weights_in_nz_give_the_text_of_those_in_nd(
    make_machine: MachineMaker, soc_name: str, hidden_size: int, said: str, tmp_path: Path
) -> None:
    """G50: tied embeddings stay in ND, since their rows are looked up, and so do shapes that no block fits."""
    folder = make_checkpoint(
        tmp_path, hidden_size=hidden_size, num_attention_heads=4, head_dim=16, tie_word_embeddings=True
    )
    answers, summaries = [], []
    for layout in ("nd", "nz"):
        make_machine(soc_name)
        replica = replica_of(folder, NpuOptions(weight_layout=layout))
        answers.append(tokens(replica, Request(PROMPT, 8)))
        summaries.append(replica.engine.device.ops.description)
    assert "ND 9/9" in summaries[0]
    assert said in summaries[1]
    assert answers[0] == answers[1]
    Witness(folder).assert_greedy(PROMPT, answers[1], NEAR_TIE)
