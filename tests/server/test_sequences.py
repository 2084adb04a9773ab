"""Step batches from a table of sequences: steps of rounded size, and decode steps, which have a way of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from text_generation_proto import generate_pb2 as pb
from text_generation_server.sequences import SequenceTable, StepBatch

BLOCK_SIZE = 16
ADMISSION = pb.Admission(table_index=2, token_ids=range(100, 120), num_prompt_tokens=20, block_ids=[7, 3])
REQUEST = pb.StepRequest(admit=[ADMISSION], row_table_index=[2], row_num_tokens=[20])


def test_tokens_behind_the_last_row_belong_to_no_row() -> None:
    table = SequenceTable(4, 64, BLOCK_SIZE, torch.device("cpu"), token_multiple=16)
    table.apply(REQUEST)
    batch = table.batch(REQUEST)
    assert batch.step.num_tokens == 20
    assert batch.token_ids.tolist()[:20] == list(range(100, 120))
    assert batch.step.positions.tolist() == [*range(20), *[0] * 12]
    slots = [7 * BLOCK_SIZE + offset for offset in range(16)] + [3 * BLOCK_SIZE + offset for offset in range(4)]
    assert batch.step.slot_mapping.tolist() == [*slots, *[-1] * 12]
    assert batch.step.cu_seqlens_q == (0, 20)
    assert batch.step.kv_lens == (20,)
    assert batch.sampled_token_index.tolist() == [19]


def test_a_size_that_is_a_multiple_stays_as_it_is() -> None:
    for multiple in (1, 4, 20):
        table = SequenceTable(4, 64, BLOCK_SIZE, torch.device("cpu"), token_multiple=multiple)
        table.apply(REQUEST)
        assert len(table.batch(REQUEST).token_ids) == 20


def facts(batch: StepBatch) -> dict[str, object]:
    step = batch.step
    return {
        "token_ids": batch.token_ids.tolist(),
        "positions": step.positions.tolist(),
        "slots": step.slot_mapping.tolist(),
        "block_tables": step.block_tables.tolist(),
        "cu_seqlens_q": step.cu_seqlens_q,
        "kv_lens": step.kv_lens,
        "sampled": batch.sampled_token_index.tolist(),
        "sampled_rows": batch.sampled_table_index,
        "masks": batch.masks,
    }


class TwoTables:
    """The same steps twice: of one token a row without lengths, as the router sends them, and with them, which goes the
    general way."""

    def __init__(self) -> None:
        self.tables = [SequenceTable(4, 64, BLOCK_SIZE, torch.device("cpu")) for _ in range(2)]
        self.num_tokens: dict[int, int] = {}
        self.blocks_of: dict[int, int] = {}
        self.num_blocks = 0

    def admit(self, index: int, count: int) -> None:
        """A sequence of `count` known tokens, all but the last computed."""
        blocks = range(self.num_blocks, self.num_blocks + -(-count // BLOCK_SIZE))
        admission = pb.Admission(
            table_index=index,
            token_ids=range(1000 * index, 1000 * index + count),
            num_prompt_tokens=count,
            num_computed_tokens=count - 1,
            block_ids=blocks,
        )
        self.num_blocks = blocks.stop
        self.blocks_of[index] = len(blocks)
        self._apply(pb.StepRequest(release=[index], admit=[admission]))
        self.num_tokens[index] = count

    def release(self, index: int) -> None:
        self._apply(pb.StepRequest(release=[index]))
        del self.num_tokens[index]

    def decode(self, rows: Sequence[int], masked: bool = False) -> None:
        """One step, and its samples: the same facts by both ways."""
        grown = [index for index in rows if self.num_tokens[index] > self.blocks_of[index] * BLOCK_SIZE]
        for index in grown:
            self.blocks_of[index] += 1
        blocks = range(self.num_blocks, self.num_blocks + len(grown))
        self.num_blocks = blocks.stop
        self._apply(pb.StepRequest(append_table_index=grown, append_block_id=blocks))
        request = pb.StepRequest(row_table_index=rows)
        if masked:
            request.masked_rows.append(len(rows) - 1)
            request.masks = b"mask"
        spelled_out = pb.StepRequest()
        spelled_out.CopyFrom(request)
        spelled_out.row_num_tokens.extend([1] * len(rows))
        plain, other = (
            table.batch(request) for table, request in zip(self.tables, (request, spelled_out), strict=True)
        )
        assert facts(plain) == facts(other)
        for table in self.tables:
            table.append_sampled(
                list(rows), torch.tensor([7 * self.num_tokens[index] for index in rows], dtype=torch.int64)
            )
        for index in rows:
            self.num_tokens[index] += 1
        assert torch.equal(*(table.token_ids for table in self.tables))

    def _apply(self, request: pb.StepRequest) -> None:
        for table in self.tables:
            table.apply(request)


@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from(["admit", "decode", "decode", "decode", "release"]),
            st.permutations(range(4)),
            st.integers(1, 40),
        ),
        max_size=25,
    )
)
def test_decode_steps_are_what_the_general_way_makes_of_them_whoever_comes_and_goes(
    moves: list[tuple[str, list[int], int]],
) -> None:
    both = TwoTables()
    for move, order, count in moves:
        running = [index for index in order if index in both.num_tokens]
        if move == "admit":
            both.admit(order[0], count)
        elif move == "release" and running:
            both.release(running[0])
        elif move == "decode":
            rows = [index for index in running if both.num_tokens[index] < 64]
            both.decode(rows, masked=bool(rows) and count % 3 == 0)


def test_a_row_that_does_not_reach_its_last_token_does_not_sample() -> None:
    table = SequenceTable(4, 64, BLOCK_SIZE, torch.device("cpu"))
    table.apply(REQUEST)
    batch = table.batch(pb.StepRequest(row_table_index=[2]))
    assert (batch.token_ids.tolist(), batch.step.kv_lens, batch.sampled_table_index) == ([100], (1,), [])


def test_the_wasted_row_of_a_full_sequence_stays_within_its_table_row() -> None:
    table = SequenceTable(2, 32, BLOCK_SIZE, torch.device("cpu"))
    first = pb.Admission(
        table_index=0, token_ids=range(32), num_prompt_tokens=32, num_computed_tokens=31, block_ids=[0, 1]
    )
    table.apply(pb.StepRequest(admit=[first]))
    table.batch(pb.StepRequest(row_table_index=[0]))
    table.append_sampled([0], torch.tensor([9]))
    assert table.token_ids[0].tolist() == [*range(31), 9]
    assert table.token_ids[1].tolist() == [0] * 32
