"""Whether a row of the model's logits is fit to choose a token by, and what is wrong with it if not.

A broken kernel or an overflow inside the model shows in the logits at last: as NaN, +inf, nothing but -inf, or the same
number everywhere, which zeros before them give, too; on a chip that saturates, as its largest number, while a NaN is 0
there. Sampling would make some token of them, the same one for ever. The answer is read with the token's
log-probability, so it costs no wait for the device; only a row that failed is looked at again, on the host.

Looks at logits as the model made them: -inf that grammars, filters or biases put in are not here.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from text_generation_kernels.interface import MostLikely

# No log-probability is above 0; and unlike NaN, a chip that saturates keeps it.
_FAULTY = 1.0
# Logits that differ less than this on average say nothing: far below what tells tokens apart, far above rounding.
_SPREAD = 1e-4


def mark_faulty(logprobs: Tensor, logits: Tensor, best: MostLikely, saturates_at: float) -> Tensor:
    """Log-probabilities of chosen tokens, with a mark that `is_faulty` knows in the place of a row that is unfit.

    Args:
        logprobs: [num_rows] float32.
        logits: [num_rows, vocab_size] float32.
        saturates_at: of the ops that made the logits.
    """
    # The sum is NaN where the row has NaN or +inf, or is all -inf, and the vocabulary's size where all are equal.
    sound = best.log_sums <= math.log(logits.shape[-1]) - _SPREAD
    if saturates_at < math.inf:
        sound &= (best.values < saturates_at) & (logits.amin(dim=-1) > -saturates_at)
    return torch.where(sound, logprobs, _FAULTY)


def likeliest_logprobs(log_sums: list[float], vocab_size: int) -> list[float]:
    """`mark_faulty` of the log-probabilities of the most likely tokens, where nothing saturates; values as there.

    Args:
        log_sums: of all rows.
    """
    most = _largest_log_sum(vocab_size)
    return [0.0 - log_sum if log_sum <= most else _FAULTY for log_sum in log_sums]


@functools.lru_cache(maxsize=8)
def _largest_log_sum(vocab_size: int) -> float:
    """Of a row that is sound, as the float32 number that `mark_faulty` compares with."""
    return float(np.float32(math.log(vocab_size) - _SPREAD))


def is_faulty(logprob: float) -> bool:
    """Whether a value that `mark_faulty` returned stands for a row that is unfit."""
    return logprob > 0


def describe(logits: Tensor, saturates_at: float) -> str:
    """What is wrong with a row, in a few words. logits: [vocab_size], on any device."""
    row = logits.float().cpu()
    size = len(row)
    if bool((row == -math.inf).all()):
        return f"-inf in all {size} logits"
    for what, found in (
        ("NaN", row.isnan()),
        ("+inf", row == math.inf),
        (f"+-{saturates_at:g}, which is what an overflow becomes there,", row.abs() >= saturates_at),
    ):
        count = int(found.sum())
        if count:
            return f"{what} in {count} of {size} logits"
    return f"the same value in all {size} logits"
