"""How far a result may be from what is expected.

Values are compared and never looked at for NaN alone: chips that saturate show 0 where others show NaN. Each row is
judged by itself, since a kernel may be right for the first rows only.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Of a row's size. Rounding to float16 is 5e-4 of it, to bfloat16 4e-3; sums of some hundred of them stay below.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 2e-2}


def row_error(actual: Tensor, expected: Tensor) -> float:
    """The largest distance of a row from what it should be, as a share of the expected row's length.

    Rows that should be nearly nothing beside the others are held against a hundredth of the longest one's length.

    Args:
        actual, expected: [num_rows, ...] float32 of one shape.
    Returns: infinity for another shape and for values that are no numbers.
    """
    if actual.shape != expected.shape:
        return float("inf")
    if not expected.numel():
        return 0.0
    count = len(expected)
    rows, wanted = actual.double().reshape(count, -1), expected.double().reshape(count, -1)
    lengths = wanted.norm(dim=1)
    lengths = lengths.clamp(min=max(0.01 * float(lengths.max()), 1e-30))
    error = float(((rows - wanted).norm(dim=1) / lengths).max())
    return float("inf") if math.isnan(error) else error


def wrong_row(actual: Tensor, expected: Tensor) -> int:
    """The row that is farthest from what it should be, for a message."""
    distances = (actual.double() - expected.double()).reshape(len(expected), -1).norm(dim=1).nan_to_num(float("inf"))
    return int(distances.argmax())
