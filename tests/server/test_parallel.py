"""Groups of real processes over gloo: what each collective gives, and how a group that does not form ends."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.kernels.implementations import library_or_skip
from tests.server.models.stepping import load, one_rank_of_many, two_rows
from tests.server.ranks import free_port, replay, spawn_ranks, talk
from tests.support.checkpoints import FAMILIES, make_checkpoint
from text_generation_kernels.cpu.device import CpuDevice
from text_generation_server.parallel import GroupError, LoneRank, ProcessGroup, join_group


def test_lone_rank_gives_back_what_it_gets() -> None:
    group, x = LoneRank(), torch.arange(6.0).view(2, 3)
    assert group.all_reduce(x) is x
    assert group.gather_logits(x, 3) is x
    ids = torch.tensor([4, 5])
    assert group.broadcast_ids(ids, 2) is ids
    assert group.all_reduce_min(7) == 7


@pytest.fixture(scope="module", params=[2, 3])
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank got from every collective, see `talk`."""
    world_size: int = request.param
    folder = tmp_path_factory.mktemp("ranks")
    spawn_ranks(talk, world_size, str(folder))
    return [torch.load(folder / f"{rank}.pt") for rank in range(world_size)]


def test_every_rank_gets_the_sum_the_smallest_and_rank_0s_ids(said: list[dict[str, Any]]) -> None:
    for answers in said:
        assert answers["sum"].tolist() == [sum(range(len(said))), len(said)]
        assert answers["ids"].tolist() == [11, 12, 13]
        assert answers["min"] == 5


def test_rank_0_gets_an_unevenly_split_vocabulary_in_order(said: list[dict[str, Any]]) -> None:
    """259 columns; those of rank r are r everywhere."""
    widths = {2: [130, 129], 3: [87, 86, 86]}[len(said)]
    expected = [float(rank) for rank, width in enumerate(widths) for _ in range(width)]
    assert said[0]["logits"].tolist() == [expected, expected]
    assert all(answers["logits"] is None for answers in said[1:])


def test_sum_has_the_same_bits_wherever_a_row_lies(said: list[dict[str, Any]]) -> None:
    """A ring adds each piece of the buffer from another rank on; the sum must not show where a row lay in its step."""
    rows = said[0]["rows"]
    assert torch.equal(rows, rows[:1].expand_as(rows))
    assert all(torch.equal(rows, answers["rows"]) for answers in said[1:])


def test_two_shards_give_the_logits_of_one(tmp_path: Path) -> None:
    """Cases G25 and G27: every family, a vocabulary of 259, tied embeddings, biases, odd MLP width, one kv head."""
    folders = [make_checkpoint(tmp_path / family, family, tokenizer=False) for family in FAMILIES]
    folders += [
        make_checkpoint(tmp_path / "odd_vocabulary", vocab_size=259, tokenizer=False),
        make_checkpoint(tmp_path / "tied", vocab_size=259, tie_word_embeddings=True, tokenizer=False),
        make_checkpoint(tmp_path / "biases", attention_bias=True, mlp_bias=True, tokenizer=False),
        make_checkpoint(tmp_path / "odd_mlp", intermediate_size=113, tokenizer=False),
        make_checkpoint(tmp_path / "one_kv_head", num_key_value_heads=1, tokenizer=False),
        make_checkpoint(tmp_path / "bin", layout="sharded_bin", tokenizer=False),
    ]
    results = tmp_path / "results.pt"
    spawn_ranks(one_rank_of_many, 2, [str(folder) for folder in folders], str(results))
    sharded = torch.load(results)
    for folder in folders:
        alone = two_rows(load(folder))
        assert alone is not None
        assert alone.std() > 1
        torch.testing.assert_close(sharded[str(folder)], alone, rtol=0, atol=1e-4, msg=f"{folder.name} differs")


@pytest.mark.parametrize("world_size", [2, 3])
def test_captured_steps_of_a_group_have_the_bits_of_those_op_by_op(tmp_path: Path, world_size: int) -> None:
    """Two ranks add up in place, three make a new tensor; the vocabulary of 320 does not divide by three."""
    library_or_skip()
    checkpoint = make_checkpoint(
        tmp_path / "model",
        tokenizer=False,
        hidden_size=96,
        num_attention_heads=6,
        num_key_value_heads=6,
        dtype="bfloat16",
    )
    spawn_ranks(replay, world_size, str(checkpoint), str(tmp_path))
    for op_by_op, captured in torch.load(tmp_path / "0.pt"):
        assert op_by_op.shape[1] == 320
        assert op_by_op.std() > 0.1
        assert torch.equal(captured, op_by_op)
    assert torch.load(tmp_path / "1.pt") == [(None, None)] * 3


def test_rank_that_waits_in_vain_says_for_whom() -> None:
    with pytest.raises(GroupError, match=r"rank 1 could not meet the other 1 at 127\.0\.0\.1:\d+ within 1 s: "):
        join_group(CpuDevice(), 1, 2, master_addr="127.0.0.1", master_port=free_port(), timeout_s=1)


def test_port_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(GroupError, match=f"rank 0 could not meet the other 1 at 127.0.0.1:{port}") as caught:
            join_group(CpuDevice(), 0, 2, master_addr="127.0.0.1", master_port=port, timeout_s=1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            "HCCL function error: HcclAllReduce\nEJ0003: Failed to bind the IP port. Reason: it is bound already.",
            "HCCL cannot open its ports, from 60016 on: another server of this host, or one that has just ended, has "
            "them; set HCCL_IF_BASE_PORT to the first of 16 free ports "
            "(EJ0003: Failed to bind the IP port. Reason: it is bound already.)",
        ),
        ("Connection closed by peer\nmore", "another rank has ended or hangs (Connection closed by peer)"),
    ],
    ids=["port", "peer"],
)
def test_an_error_of_a_collective_says_what_to_do(error: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G48: a port that HCCL finds in use is named, with its likely owner and the setting to change."""

    def refuse(*arguments: object, **named: object) -> None:
        raise RuntimeError(error)

    monkeypatch.setenv("HCCL_IF_BASE_PORT", "60016")
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    try:
        group = ProcessGroup(CpuDevice(), timedelta(seconds=5))
        monkeypatch.setattr(dist, "all_reduce", refuse)
        with pytest.raises(GroupError) as caught:
            group.all_reduce_min(3)
        assert str(caught.value) == said
    finally:
        dist.destroy_process_group()
