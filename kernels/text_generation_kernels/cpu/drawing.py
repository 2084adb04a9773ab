"""`Ops.draw` without the native kernels: temperature, filters and the choice of a token, by selection, not by sorting.

Rows are worked on one at a time, so that a row's result cannot depend on its neighbours, and in numpy, whose calls are
cheap and run in the calling thread: waking torch's threads some ten times a row gains nothing, and stalls on a busy
machine. Sorting one row of 49,152 takes torch 3.1 ms. Only the tokens around a filter's cut need to be in order, so the
probability mass is first added up in coarse buckets, and the one bucket that the cut falls into is sorted: 0.2 ms,
whatever the distribution (Xeon with AVX-512).

Comparisons are written so that a row of NaN, which only a broken model gives, still ends in some id: the NaN then shows
in the reported log-probability, and the rows beside it are not lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from text_generation_kernels.interface import Filters
from text_generation_kernels.sampling import LOWEST_LOGPROB

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

BUCKET_SHIFT = 19  # keys are told apart by 12 of their 31 bits first: sixteen buckets for each power of two
BLOCK = 256  # tokens whose probabilities are added up before the cumulative sum: 0.01 ms a row instead of 0.14


def draw(logits: Tensor, rows: Sequence[int], filters: Sequence[Filters], uniforms: Sequence[float]) -> Tensor:
    """`Ops.draw`."""
    table: Floats = logits.numpy()
    drawn = [_draw_one(table[row], f, uniform) for row, f, uniform in zip(rows, filters, uniforms, strict=True)]
    return torch.tensor(drawn, dtype=torch.int64)


def surviving(scores: Floats, filters: Filters) -> tuple[Ids | None, Floats]:
    """Ids that the filters leave, ascending, or None for all of them; and their probabilities, up to a common factor.

    Args:
        scores: [vocab_size] logits divided by the temperature, the largest of them 0.
    """
    ids: Ids | None = None
    if 0 < filters.top_k < len(scores):
        kth = np.partition(scores, len(scores) - filters.top_k)[len(scores) - filters.top_k]
        ids = np.flatnonzero(~(scores < kth))
        scores = scores[ids]
    probs = _softmax(scores)
    if filters.top_p < 1.0:
        # Tokens below this bound add up to less than half of what top_p drops: they go first, and cheaply.
        head = np.flatnonzero(~(probs < 0.5 * (1.0 - filters.top_p) / len(probs)))
        kept = head[_smallest_set(np.abs(scores[head]), probs[head], filters.top_p, with_ties=False)]
        ids = kept if ids is None else ids[kept]
        scores, probs = scores[kept], probs[kept]
    if filters.typical_p < 1.0:
        logprobs = np.maximum(torch.log_softmax(torch.from_numpy(scores), dim=-1).numpy(), np.float32(LOWEST_LOGPROB))
        probs = np.exp(logprobs)
        entropy = -(probs * logprobs).sum()
        kept = _smallest_set(np.abs(-logprobs - entropy), probs, filters.typical_p, with_ties=True)
        ids = kept if ids is None else ids[kept]
        probs = probs[kept]
    return ids, probs


def invert(probs: Floats, uniform: float) -> int:
    """The first index whose cumulative probability exceeds the uniform number's share of the total.

    Args:
        probs: at least one, need not add up to 1.
    Returns: never an index of probability 0.
    """
    block_ends = np.cumsum(np.add.reduceat(probs, np.arange(0, len(probs), BLOCK)), dtype=np.float64)
    target = uniform * block_ends[-1]
    block = _first_above(block_ends, target)
    within = np.cumsum(probs[block * BLOCK : (block + 1) * BLOCK], dtype=np.float64)
    return block * BLOCK + _first_above(within, target - block_ends[block - 1] if block else target)


def _draw_one(logits: Floats, filters: Filters, uniform: float) -> int:
    with np.errstate(over="ignore", invalid="ignore"):  # to -inf, which is what a far smaller logit means here
        scores = (logits - logits.max()) / np.float32(filters.temperature)
    ids, probs = surviving(scores, filters)
    index = invert(probs, uniform)
    return index if ids is None else int(ids[index])


def _smallest_set(keys: Floats, probs: Floats, mass: float, with_ties: bool) -> Ids:
    """Indices of the smallest keys whose probabilities together reach `mass`, ascending. At least one.

    Args:
        keys: not negative (then their bits, read as integers, order as they do); equal ones go by index.
        with_ties: whether to keep all that tie with the last one kept.
    """
    buckets = keys.view(np.int32) >> BUCKET_SHIFT
    ends = np.cumsum(np.bincount(buckets, weights=probs))  # in float64
    cut = min(int(np.searchsorted(ends, mass)), len(ends) - 1)
    inside = np.flatnonzero(buckets == cut)
    # Key and index in one integer: sorting these is stable, and 14 times faster than a stable argsort.
    packed = (keys[inside].view(np.int32).astype(np.int64) << 32) | inside
    packed.sort()
    order = packed & 0xFFFFFFFF
    mass_by = np.cumsum(probs[order], dtype=np.float64) + (ends[cut - 1] if cut else 0.0)
    last = min(int(np.searchsorted(mass_by, mass)), len(order) - 1)
    keep = buckets < cut
    keep[inside[~(keys[inside] > keys[order[last]])] if with_ties else order[: last + 1]] = True
    return np.flatnonzero(keep)


def _first_above(cumulative: npt.NDArray[np.float64], target: float) -> int:
    """The first index whose value exceeds the target; the last that adds anything, if rounding has reached the end."""
    last = int(np.searchsorted(cumulative, cumulative[-1], side="left"))
    return min(int(np.searchsorted(cumulative, target, side="right")), last)


def _softmax(scores: Floats) -> Floats:
    """Torch's row kernel: vectorized on x86 and Arm alike, and in one thread for one row."""
    probs: Floats = torch.softmax(torch.from_numpy(scores), dim=-1).numpy()
    return probs
