"""Filters of logits."""

from __future__ import annotations

import torch
from torch import Tensor

from text_generation_npu_emulator.launch import Call
from text_generation_npu_emulator.operators import kernel


@kernel("npu_top_k_top_p")
def top_k_top_p(call: Call, logits: Tensor, p: Tensor | None, k: Tensor | None) -> Tensor:
    """Logits with -inf for tokens outside the k best, and then outside the best of mass p."""
    call.require(logits.dim() == 2, f"logits must be (rows, vocabulary), got {tuple(logits.shape)}")
    rows, vocabulary = logits.shape
    values, order = call.read(logits).float().sort(dim=-1)
    if k is not None:
        call.require(k.dtype == torch.int32 and tuple(k.shape) == (rows,), f"k must be ({rows},) int32, got {k.dtype}")
        counts = call.read(k).long()
        limit = min(1024, vocabulary)
        call.require(bool(((counts >= 1) & (counts <= limit)).all()), f"k must lie within 1..{limit}")
        least = values.gather(1, (vocabulary - counts)[:, None])
        values = values.masked_fill(values < least, float("-inf"))
    if p is not None:
        call.require(p.dtype == logits.dtype, f"p must have the dtype of logits {logits.dtype}, got {p.dtype}")
        call.require(tuple(p.shape) == (rows,), f"p must be ({rows},), got {tuple(p.shape)}")
        mass = values.softmax(-1).cumsum(-1)
        outside = mass <= 1 - call.read(p).float()[:, None]
        outside[:, -1] = False
        values = values.masked_fill(outside, float("-inf"))
    return torch.empty_like(values).scatter_(1, order, values).to(logits.dtype)
