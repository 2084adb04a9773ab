"""Log-probabilities under the model's own distribution: log-softmax in float32 of its logits, before any processing.

What is reported says what the model thinks, the same however the token was chosen. Every value is finite and at most 0.
Rows go through torch's row-wise log_softmax kernel, whose result for a row does not depend on how many there are; its
sum in another form (`logsumexp`, `sum`) is split over threads in a way that does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_TABLE_ELEMENTS = 2**20  # of log-probabilities held at once: 4 MB, about a core's cache


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The most likely tokens of some rows, flattened over the rows."""

    counts: tuple[int, ...]  # one a row; 0 where none were asked for; above what was asked for where tokens tie
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def token_logprobs(logits: Tensor, token_ids: Tensor) -> Tensor:
    """The log-probability of one given token in each row.

    Holds the log-probabilities of a few rows at a time only.

    Args:
        logits: [num_rows, vocab_size] float32, not changed.
        token_ids: [num_rows] int64 on the same device, each within the vocabulary.
    Returns: [num_rows] float32.
    """
    num_rows, vocab_size = logits.shape
    rows_at_once = max(1, MAX_TABLE_ELEMENTS // vocab_size)
    chosen = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    for start in range(0, num_rows, rows_at_once):
        part = slice(start, start + rows_at_once)
        chosen[part] = torch.log_softmax(logits[part], dim=-1).gather(-1, token_ids[part, None])[:, 0]
    return _finite(chosen)


def top_tokens(logits: Tensor, top_n: Sequence[int]) -> TopTokens:
    """The `top_n[i]` most likely tokens of each row i, and all that tie with the last of them; best first, then by id.

    Reads back from the device, and so waits for it, if any row asks.

    Args:
        logits: [num_rows, vocab_size] float32, not changed.
        top_n: one a row; 0 asks for nothing; more than the vocabulary means all of it.
    """
    vocab_size = logits.shape[-1]
    asking = [row for row, n in enumerate(top_n) if n > 0]
    counts = [0] * len(top_n)
    token_ids: list[int] = []
    logprobs: list[float] = []
    if asking:
        table = torch.log_softmax(logits[asking], dim=-1)
        # One more than asked: if that one is less likely than the n-th, nothing beyond it ties.
        width = min(max(top_n) + 1, vocab_size)
        best = torch.topk(table, width, dim=-1)
        best_values, best_ids = _finite(best.values).tolist(), best.indices.tolist()
        for place, row in enumerate(asking):
            n = min(top_n[row], vocab_size)
            last = best_values[place][n - 1]
            if n < vocab_size and best_values[place][n] == last:
                ids = (table[place] >= best.values[place, n - 1]).nonzero()[:, 0].tolist()
                found = list(zip(ids, _finite(table[place, ids]).tolist(), strict=True))
            else:
                found = list(zip(best_ids[place][:n], best_values[place][:n], strict=True))
            found.sort(key=lambda pair: (-pair[1], pair[0]))
            counts[row] = len(found)
            token_ids.extend(token_id for token_id, _ in found)
            logprobs.extend(logprob for _, logprob in found)
    return TopTokens(counts=tuple(counts), token_ids=tuple(token_ids), logprobs=tuple(logprobs))


def _finite(logprobs: Tensor) -> Tensor:
    """At most 0 and above -inf, which is what a logit of -inf would give."""
    return logprobs.clamp(min=torch.finfo(torch.float32).min, max=0.0)
