"""The ops that choose tokens, as tensor operations over all rows at once: for any device, and never waiting for it.

`draw` needs one full sort of each filtered row. The CPU has faster ways, in `cpu/drawing` and in the native library.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from text_generation_kernels.interface import Filters, MostLikely

OFF = 2.0  # a mass that no cumulative sum reaches, whatever its rounding
# Of scores that are drawn from at once: 8 MB, and with a sort of them, their order and their sums 15 times that.
_MAX_DRAWN_ELEMENTS = 2**21
LOWEST_LOGPROB = -1e30  # stands for -inf where 0 * -inf must be 0
MAX_TABLE_ELEMENTS = 2**20  # of log-probabilities held at once: 4 MB, about a core's cache


def most_likely(logits: Tensor) -> MostLikely:
    """`Ops.most_likely`, holding the log-probabilities of a few rows at a time.

    They come from torch's row-wise log_softmax, whose result for a row does not depend on how many there are; its sum
    in another form (`logsumexp`, `sum`) is split over threads in a way that does.
    """
    num_rows, vocab_size = logits.shape
    values, ids = logits.max(dim=-1)  # the first of equal ones; not argmax, which is three times slower
    rows_at_once = max(1, MAX_TABLE_ELEMENTS // vocab_size)
    log_sums = torch.empty_like(values)
    for start in range(0, num_rows, rows_at_once):
        part = slice(start, start + rows_at_once)
        log_sums[part] = -torch.log_softmax(logits[part], dim=-1).gather(-1, ids[part, None])[:, 0]
    return MostLikely(ids, values, log_sums)


def top_k(logits: Tensor, rows: Sequence[int], k: int) -> tuple[Tensor, Tensor]:
    """`Ops.top_k`."""
    best = torch.topk(logits[list(rows)], k, dim=-1)
    return best.values, best.indices


def draw(logits: Tensor, rows: Sequence[int], filters: Sequence[Filters], uniforms: Sequence[float]) -> Tensor:
    """`Ops.draw`, a few rows at a time: a large vocabulary's tables of all rows would fill a card."""
    rows_at_once = max(1, _MAX_DRAWN_ELEMENTS // logits.shape[-1])
    drawn = []
    for first in range(0, max(1, len(rows)), rows_at_once):
        part = slice(first, first + rows_at_once)
        drawn.append(_draw_at_once(logits, rows[part], filters[part], uniforms[part]))
    return drawn[0] if len(drawn) == 1 else torch.cat(drawn)


def _draw_at_once(logits: Tensor, rows: Sequence[int], filters: Sequence[Filters], uniforms: Sequence[float]) -> Tensor:
    scores = logits[list(rows)]
    temperature = torch.tensor([f.temperature for f in filters], dtype=torch.float32).to(scores.device)
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / temperature[:, None]
    if any(f.top_k > 0 or f.top_p < 1.0 or f.typical_p < 1.0 for f in filters):
        scores = scores.masked_fill(~surviving(scores, filters), -torch.inf)
    return invert(torch.softmax(scores, dim=-1), uniforms)


def surviving(scores: Tensor, filters: Sequence[Filters]) -> Tensor:
    """Which tokens the filters leave.

    Args:
        scores: [num_rows, vocab_size] float32 logits, divided by the temperature.
    Returns: [num_rows, vocab_size] bool.
    """
    device, vocab_size = scores.device, scores.shape[-1]
    top_k = torch.tensor([min(f.top_k or vocab_size, vocab_size) for f in filters]).to(device)
    top_p = torch.tensor([f.top_p if f.top_p < 1.0 else OFF for f in filters], dtype=_wide(scores)).to(device)
    typical_p = torch.tensor([f.typical_p if f.typical_p < 1.0 else OFF for f in filters], dtype=_wide(scores))
    typical_p = typical_p.to(device)

    ordered, ids = scores.sort(dim=-1, descending=True, stable=True)
    kth = ordered.gather(-1, top_k[:, None] - 1)
    keep = ordered >= kth
    mass_before = _cumulative(torch.softmax(ordered.masked_fill(~keep, -torch.inf), dim=-1), exclusive=True)
    keep &= mass_before < top_p[:, None]
    if any(f.typical_p < 1.0 for f in filters):
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
