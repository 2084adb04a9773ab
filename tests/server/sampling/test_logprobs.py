"""Reported log-probabilities against float64, and ties among the most likely tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from text_generation_kernels.cpu.ops import CpuOps
from text_generation_server.sampling import TopTokens, logprobs

OPS = CpuOps()


def token_logprobs(logits: Tensor, token_ids: Tensor) -> Tensor:
    return logprobs.token_logprobs(logits, token_ids, OPS.most_likely(logits))


def top_tokens(logits: Tensor, top_n: list[int]) -> TopTokens:
    return logprobs.top_tokens(OPS, logits, top_n, OPS.most_likely(logits))


def random_logits(num_rows: int, vocab_size: int, seed: int = 0, scale: float = 4.0) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 8.0, 100.0])
@pytest.mark.parametrize("vocab_size", [1, 2, 257, 49152])
def test_logprobs_are_those_of_float64(vocab_size: int, scale: float) -> None:
    logits = random_logits(25, vocab_size, scale=scale) + 7.0
    token_ids = torch.arange(25) * 131 % vocab_size
    token_ids[:5] = logits[:5].argmax(-1)
    expected = torch.log_softmax(logits.double(), -1).gather(-1, token_ids[:, None])[:, 0]
    actual = token_logprobs(logits, token_ids)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), expected, rtol=1e-6, atol=2e-6)
    assert (actual <= 0).all()


def test_logprobs_stay_finite_and_below_zero_at_the_extremes() -> None:
    logits = torch.tensor([[0.0, -math.inf, -1e30], [1e30, 0.0, -1e30], [200.0, 100.0, 0.0]])
    for token_id in range(3):
        logprobs = token_logprobs(logits, torch.full((3,), token_id))
        assert torch.isfinite(logprobs).all()
        assert (logprobs <= 0).all()


def test_a_slice_gives_what_the_whole_gives_to_the_bit() -> None:
    logits = random_logits(70, 40000)  # more than one part, of a size that torch would split over threads
    token_ids = torch.arange(70) * 571
    whole = token_logprobs(logits, token_ids)
    for part in (slice(0, 1), slice(3, 33), slice(69, 70)):
        assert torch.equal(token_logprobs(logits[part].clone(), token_ids[part]), whole[part])


@settings(deadline=None, max_examples=100)
@given(
    rows=st.lists(st.lists(st.integers(-3, 3), min_size=6, max_size=6), min_size=1, max_size=4),
    top_n=st.lists(st.integers(0, 8), min_size=4, max_size=4),
)
def test_top_tokens_are_the_n_best_and_all_that_tie_with_the_last(rows: list[list[int]], top_n: list[int]) -> None:
    """Logits of few values, so that nearly every row has ties."""
    logits = torch.tensor(rows, dtype=torch.float32)
    top = top_tokens(logits, top_n[: len(rows)])
    logprobs = torch.log_softmax(logits.double(), -1)
    ids, values = iter(top.token_ids), iter(top.logprobs)
    for row, values_of_row in enumerate(rows):
        n = min(top_n[row], 6)
        limit = sorted(values_of_row, reverse=True)[n - 1] if n else math.inf
        expected = [i for i in sorted(range(6), key=lambda i: (-values_of_row[i], i)) if values_of_row[i] >= limit]
        assert top.counts[row] == len(expected)
        assert [next(ids) for _ in expected] == expected
        assert [next(values) for _ in expected] == pytest.approx([float(logprobs[row, i]) for i in expected], abs=1e-6)
    assert next(ids, None) is None
    assert next(values, None) is None


def test_top_tokens_and_chosen_tokens_report_the_same_bits() -> None:
    logits = random_logits(5, 49152, seed=3)
    top = top_tokens(logits, [1, 0, 3, 0, 1])
    assert top.counts == (1, 0, 3, 0, 1)
    rows = torch.tensor([0, 2, 2, 2, 4])
    assert token_logprobs(logits[rows], torch.tensor(top.token_ids)).tolist() == list(top.logprobs)
    assert top.token_ids[0] == int(logits[0].argmax())
