"""Temperature, filters and the choice of a token, as tensor operations over all rows at once; works on every device.

Needs one full sort of each filtered row and never waits for the device. The host has a faster way to the same tokens,
in `host_choice`; the two are tested against each other.

The filters act in this order, each on what the one before has left, renormalized:
  top_k      keeps the k best tokens, and those that tie with the k-th
  top_p      drops from the tail (ties: higher ids first) while the tail's mass is at most 1 - p; the best token stays
  typical_p  keeps the tokens whose surprise is nearest to the entropy until their mass reaches p (arXiv:2202.00666)
The choice inverts the cumulative distribution of the survivors, in the order of their ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from text_generation_server.sampling.parameters import SamplingParameters

OFF = 2.0  # a mass that no cumulative sum reaches, whatever its rounding
LOWEST_LOGPROB = -1e30  # stands for -inf where 0 * -inf must be 0


def choose(rows: Sequence[Tensor], parameters: Sequence[SamplingParameters], uniforms: Sequence[float]) -> Tensor:
    """Sample one token a row.

    Args:
        rows: at least one, each [vocab_size] float32 logits after penalties and masks; not changed.
        parameters: one a row, none of them greedy.
        uniforms: one a row, in [0, 1).
    Returns: [num_rows] int64 on the rows' device.
    """
    scores = torch.stack(list(rows))
    temperature = torch.tensor([p.temperature for p in parameters], dtype=torch.float32).to(scores.device)
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / temperature[:, None]
    if any(p.top_k > 0 or p.top_p < 1.0 or p.typical_p < 1.0 for p in parameters):
        scores = scores.masked_fill(~surviving(scores, parameters), -torch.inf)
    return invert(torch.softmax(scores, dim=-1), uniforms)


def surviving(scores: Tensor, parameters: Sequence[SamplingParameters]) -> Tensor:
    """Which tokens the filters leave.

    Args:
        scores: [num_rows, vocab_size] float32 logits, divided by the temperature.
    Returns: [num_rows, vocab_size] bool.
    """
    device, vocab_size = scores.device, scores.shape[-1]
    top_k = torch.tensor([min(p.top_k or vocab_size, vocab_size) for p in parameters]).to(device)
    top_p = torch.tensor([p.top_p if p.top_p < 1.0 else OFF for p in parameters], dtype=_wide(scores)).to(device)
    typical_p = torch.tensor([p.typical_p if p.typical_p < 1.0 else OFF for p in parameters], dtype=_wide(scores))
    typical_p = typical_p.to(device)

    ordered, ids = scores.sort(dim=-1, descending=True, stable=True)
    kth = ordered.gather(-1, top_k[:, None] - 1)
    keep = ordered >= kth
    mass_before = _cumulative(torch.softmax(ordered.masked_fill(~keep, -torch.inf), dim=-1), exclusive=True)
    keep &= mass_before < top_p[:, None]
    if any(p.typical_p < 1.0 for p in parameters):
        logprobs = torch.log_softmax(ordered.masked_fill(~keep, -torch.inf), dim=-1)
        probs = logprobs.exp()
        entropy = -(probs * logprobs.clamp(min=LOWEST_LOGPROB)).sum(dim=-1, keepdim=True)
        distance = (-logprobs - entropy).abs()  # +inf where dropped
        by_distance, order = distance.sort(dim=-1, stable=True)
        reached_by = (_cumulative(probs.gather(-1, order)) < typical_p[:, None]).sum(dim=-1, keepdim=True)
        limit = by_distance.gather(-1, reached_by.clamp_(max=vocab_size - 1))
        keep &= distance <= limit
    return torch.zeros_like(keep).scatter_(-1, ids, keep)


def invert(probs: Tensor, uniforms: Sequence[float]) -> Tensor:
    """The first token whose cumulative probability exceeds the uniform number's share of the total.

    Args:
        probs: [num_rows, vocab_size] float32, need not add up to 1.
        uniforms: one a row, in [0, 1).
    Returns: [num_rows] int64; never a token of probability 0.
    """
    cumulative = _cumulative(probs)
    total = cumulative[:, -1:]
    target = torch.tensor(uniforms, dtype=cumulative.dtype).to(probs.device)[:, None] * total
    # The product may round up to the total, so the last token with a probability bounds the choice.
    last = (cumulative < total).sum(dim=-1)
    return torch.minimum((cumulative <= target).sum(dim=-1), last)


def _cumulative(probs: Tensor, exclusive: bool = False) -> Tensor:
    cumulative = probs.cumsum(dim=-1, dtype=_wide(probs))
    return cumulative - probs if exclusive else cumulative


def _wide(tensor: Tensor) -> torch.dtype:
    """What sums are made in: float64 on the host, float32 on accelerators, which lack it or crawl with it."""
    return torch.float64 if tensor.device.type == "cpu" else torch.float32
