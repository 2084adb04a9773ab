"""Penalties act on the tokens a row has, and on nothing else."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from text_generation_server.sampling.penalties import apply_frequency_penalties, apply_repetition_penalties

VOCAB_SIZE = 50
Histories = st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=80), min_size=1, max_size=5)


def random_scores(num_rows: int, seed: int) -> Tensor:
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 3


@settings(deadline=None, max_examples=50)
@given(histories=Histories, seed=st.integers(0, 1000), penalty=st.floats(0.5, 2.0))
def test_repetition_penalty_is_that_of_transformers_to_the_bit(
    histories: list[list[int]], seed: int, penalty: float
) -> None:
    before = random_scores(len(histories), seed)
    scores = before.clone()
    tensors = [torch.tensor(history) for history in histories]
    penalties = [penalty + row for row in range(len(histories))]
    apply_repetition_penalties(scores, range(len(histories)), tensors, penalties)
    for row, history in enumerate(tensors):
        expected = RepetitionPenaltyLogitsProcessor(penalty=penalties[row])(
            history[None], before[row : row + 1].clone()
        )
        assert torch.equal(scores[row], expected[0])


@settings(deadline=None, max_examples=50)
@given(histories=Histories, seed=st.integers(0, 1000), penalty=st.floats(-2.0, 2.0))
def test_frequency_penalty_takes_the_tokens_share_of_the_sequence(
    histories: list[list[int]], seed: int, penalty: float
) -> None:
    before = random_scores(len(histories), seed)
    scores = before.clone()
    apply_frequency_penalties(
        scores, range(len(histories)), [torch.tensor(history) for history in histories], [penalty] * len(histories)
    )
    for row, history in enumerate(histories):
        expected = before[row].double()
        for token_id, count in Counter(history).items():
            expected[token_id] -= penalty * count / len(history)
        torch.testing.assert_close(scores[row].double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("apply", [apply_repetition_penalties, apply_frequency_penalties])
def test_rows_that_are_not_meant_stay_as_they_are(apply: object) -> None:
    before = random_scores(4, 0)
    scores = before.clone()
    assert callable(apply)
    apply(scores, [2], [torch.tensor([1, 1, 3])], [1.5])
    changed = (scores != before).nonzero().tolist()
    assert changed == [[2, 1], [2, 3]]


def test_neutral_penalties_change_nothing_to_the_bit() -> None:
    before = random_scores(2, 1)
    scores = before.clone()
    histories = [torch.tensor([0, 4, 4]), torch.tensor([7])]
    apply_repetition_penalties(scores, [0, 1], histories, [1.0, 1.0])
    apply_frequency_penalties(scores, [0, 1], histories, [0.0, 0.0])
    assert torch.equal(scores, before)
