"""The watermark is the one that existing detectors look for."""

from __future__ import annotations

import pytest
import torch
from transformers import WatermarkLogitsProcessor

from text_generation_server.sampling import Watermark


@pytest.mark.parametrize("last_token_id", [0, 1, 77, 49151])
@pytest.mark.parametrize(("gamma", "delta"), [(0.5, 2.0), (0.25, 3.5)])
def test_watermark_is_that_of_transformers_to_the_bit(last_token_id: int, gamma: float, delta: float) -> None:
    vocab_size = 1001
    before = torch.randn(vocab_size, generator=torch.Generator().manual_seed(last_token_id))
    scores = before.clone()
    Watermark(gamma, delta).apply(scores, last_token_id)
    processor = WatermarkLogitsProcessor(vocab_size, "cpu", greenlist_ratio=gamma, bias=delta)
    expected = processor(torch.tensor([[5, last_token_id]]), before[None])
    assert torch.equal(scores, expected[0])
    assert int((scores != before).sum()) == int(gamma * vocab_size)
