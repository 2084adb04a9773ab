"""Step batches from a table of sequences: what a step of rounded size looks like."""

from __future__ import annotations

import torch

from text_generation_proto import generate_pb2 as pb
from text_generation_server.sequences import SequenceTable

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
