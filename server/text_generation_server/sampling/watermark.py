"""The soft watermark of arXiv:2301.10226: half of the vocabulary, chosen by the token before, is made likelier.

Whoever knows the hash key can tell later, from the share of such tokens, that a text was generated here.
"""

from __future__ import annotations

import torch
from torch import Tensor

HASH_KEY = 15485863  # the paper's code, TGI and transformers agree on it, so their detectors read our text


class Watermark:
    """Which tokens are green, and by how much they are raised.

    Args:
        gamma: the green share of the vocabulary, between 0 and 1.
        delta: what is added to the logits of green tokens.
    """

    def __init__(self, gamma: float = 0.5, delta: float = 2.0) -> None:
        self.gamma = gamma
        self.delta = delta

    def green_ids(self, last_token_id: int, vocab_size: int) -> Tensor:
        """Ids that the token before makes green: [int(gamma * vocab_size)] int64 on the host, in no order."""
        generator = torch.Generator(device="cpu")
        generator.manual_seed(HASH_KEY * last_token_id)
        return torch.randperm(vocab_size, generator=generator)[: int(self.gamma * vocab_size)]

    def apply(self, scores: Tensor, last_token_id: int) -> None:
        """Raise the green logits of one row, in place.

        Args:
            scores: [vocab_size] float32.
        """
        green = self.green_ids(last_token_id, scores.shape[-1]).to(scores.device)
        scores.index_add_(0, green, torch.ones(len(green), device=scores.device), alpha=self.delta)
