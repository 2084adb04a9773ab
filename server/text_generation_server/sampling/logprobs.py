"""Log-probabilities under the model's own distribution: log-softmax in float32 of its logits, before any processing.

What is reported says what the model thinks, the same however the token was chosen. Every value is finite and at most 0.
All come from one formula over what `Ops.most_likely` found, so that a token has the same bits wherever it is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from text_generation_kernels.interface import MostLikely, Ops


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The most likely tokens of some rows, flattened over the rows."""

    counts: tuple[int, ...]  # one a row; 0 where none were asked for; above what was asked for where tokens tie
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    def select(self, rows: Sequence[int]) -> TopTokens:
        """Those of some rows, in that order."""
        ends = list(accumulate(self.counts))
        places = [place for row in rows for place in range(ends[row] - self.counts[row], ends[row])]
        return TopTokens(
            counts=tuple(self.counts[row] for row in rows),
            token_ids=tuple(self.token_ids[place] for place in places),
            logprobs=tuple(self.logprobs[place] for place in places),
        )


def token_logprobs(logits: Tensor, token_ids: Tensor, best: MostLikely) -> Tensor:
    """The log-probability of one given token in each row.

    Args:
        logits: [num_rows, vocab_size] float32, not changed.
        token_ids: [num_rows] int64 on the same device, each within the vocabulary.
        best: of all rows.
    Returns: [num_rows] float32.
    """
    if token_ids is best.ids:
        return _finite(0.0 - best.log_sums)
    return _logprobs(logits.gather(-1, token_ids[:, None])[:, 0], best.values, best.log_sums)


def top_tokens(ops: Ops, logits: Tensor, top_n: Sequence[int], best: MostLikely) -> TopTokens:
    """The `top_n[i]` most likely tokens of each row i, and all that tie with the last of them; best first, then by id.

    Reads back from the device, and so waits for it, if any row asks.

    Args:
        logits: [num_rows, vocab_size] float32, not changed.
        top_n: one a row; 0 asks for nothing; more than the vocabulary means all of it.
        best: of all rows.
    """
    vocab_size = logits.shape[-1]
    asking = [row for row, n in enumerate(top_n) if n > 0]
    counts = [0] * len(top_n)
    token_ids: list[int] = []
    logprobs: list[float] = []
    if asking:
        # One more than asked: if that one is less likely than the n-th, nothing beyond it ties.
        values, ids = ops.top_k(logits, asking, min(max(top_n) + 1, vocab_size))
        table = _logprobs(values, best.values[asking, None], best.log_sums[asking, None])
        for row, found_ids, found in zip(asking, ids.tolist(), table.tolist(), strict=True):
            n = min(top_n[row], vocab_size)
            if n < vocab_size and found[n] == found[n - 1]:
                own = _logprobs(logits[row], best.values[row], best.log_sums[row])
                found_ids = (own >= found[n - 1]).nonzero()[:, 0].tolist()
                found, n = own[found_ids].tolist(), len(found_ids)
            pairs = sorted(zip(found_ids[:n], found[:n], strict=True), key=lambda pair: (-pair[1], pair[0]))
            counts[row] = n
            token_ids.extend(token_id for token_id, _ in pairs)
            logprobs.extend(logprob for _, logprob in pairs)
    return TopTokens(counts=tuple(counts), token_ids=tuple(token_ids), logprobs=tuple(logprobs))


def _logprobs(logits: Tensor, values: Tensor, log_sums: Tensor) -> Tensor:
    return _finite((logits - values).sub_(log_sums))


def _finite(logprobs: Tensor) -> Tensor:
    """At most 0 and above -inf, which is what a logit of -inf would give."""
    return logprobs.clamp_(min=torch.finfo(torch.float32).min, max=0.0)
