"""Penalties on tokens that a sequence has already, over prompt and output.

All rows are handled by one set of operations on a flat list of (row, token) places. A token that occurs twice is
written twice with the same value, computed from the score before, so that nothing needs to be made distinct and no
result depends on the order. There is no padding, hence no padding token that could be penalized.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def apply_repetition_penalties(
    scores: Tensor, rows: Sequence[int], histories: Sequence[Tensor], penalties: Sequence[float]
) -> None:
    """Divide positive scores of known tokens by the penalty and multiply negative ones, in place (arXiv:1909.05858).

    Args:
        scores: [num_rows, vocab_size] float32, contiguous.
        rows: which rows of `scores` are meant; of the same length as the next two, and not empty.
        histories: int64 on the scores' device, each [tokens so far].
        penalties: above 0; 1 changes nothing.
    """
    flat = scores.view(-1)
    places = _places(rows, histories, scores.shape[-1])
    penalty = _per_token(penalties, histories, scores)
    known = flat[places]
    flat[places] = torch.where(known < 0, known * penalty, known / penalty)


def apply_frequency_penalties(
    scores: Tensor, rows: Sequence[int], histories: Sequence[Tensor], penalties: Sequence[float]
) -> None:
    """Subtract the penalty times the token's share of the sequence (TGI's formula, not OpenAI's), in place.

    Arguments as for `apply_repetition_penalties`; 0 changes nothing.
    """
    vocab_size = scores.shape[-1]
    flat = scores.view(-1)
    places = _places(rows, histories, vocab_size)
    own_places = _places(range(len(rows)), histories, vocab_size)  # counts only for the rows that are meant
    counts = torch.zeros(len(rows) * vocab_size, dtype=torch.float32, device=scores.device)
    counts.scatter_add_(0, own_places, torch.ones_like(own_places, dtype=torch.float32))  # integers: exact in any order
    lengths = _per_token([len(history) for history in histories], histories, scores)
    share = counts[own_places] / lengths
    flat[places] = flat[places] - _per_token(penalties, histories, scores) * share


def apply_output_penalties(scores: Tensor, output: Tensor, presence_penalty: float, count_penalty: float) -> None:
    """Subtract, from each token of one row's output, `presence_penalty` once and `count_penalty` for each time it
    occurs, in place (OpenAI's definition).

    Args:
        scores: [vocab_size] float32.
        output: [tokens generated so far] int64 on the scores' device.
    """
    counts = torch.zeros_like(scores)
    counts.scatter_add_(0, output, torch.ones_like(output, dtype=torch.float32))
    scores[output] = scores[output] - (presence_penalty + count_penalty * counts[output])


def apply_logit_bias(scores: Tensor, bias: Sequence[tuple[int, float]]) -> None:
    """Add to one row's logits, in place. scores: [vocab_size] float32; token ids are distinct."""
    places = torch.tensor([token_id for token_id, _ in bias], dtype=torch.int64, device=scores.device)
    scores[places] += torch.tensor([value for _, value in bias], dtype=torch.float32, device=scores.device)


def apply_mask(scores: Tensor, mask: bytes) -> None:
    """Leave one row only the tokens that a mask allows, in place.

    Args:
        scores: [vocab_size] float32.
        mask: at least ceil(vocab_size / 32) little-endian 32-bit words; bit i % 32 of word i // 32 allows token i.
    """
    allowed = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), count=scores.shape[0], bitorder="little")
    scores.masked_fill_(torch.from_numpy(allowed == 0).to(scores.device), float("-inf"))


def _places(rows: Sequence[int], histories: Sequence[Tensor], vocab_size: int) -> Tensor:
    return torch.cat([history + row * vocab_size for row, history in zip(rows, histories, strict=True)])


def _per_token(values: Sequence[float], histories: Sequence[Tensor], scores: Tensor) -> Tensor:
    """Each row's value, repeated for each of its tokens; made on the host, so that nothing waits for the device."""
    repeated = torch.repeat_interleave(
        torch.tensor(values, dtype=torch.float32), torch.tensor([len(history) for history in histories])
    )
    return repeated.to(scores.device)
