"""Rotary positions: the fused ops where their limits allow, else x * cos + rotated x * sin in float32.

`_npu_rotary_embedding` is never used: it keeps the tables of the process's first call and ignores later ones, so that a
second model, or a check with a table of its own, silently spoils everything after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from text_generation_kernels.npu.candidates import Choice
from text_generation_kernels.npu.schemas import InstalledOps
from text_generation_kernels.npu.soc import Family


@dataclass(frozen=True, slots=True)
class RotaryShape:
    """What decides which rotation will do."""

    head_dim: int
    rotary_dim: int
    num_heads: int  # the more of queries and keys
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.rotary_dim} of {self.head_dim} dimensions"


class RotaryTables:
    """The cosines and sines of one step's tokens, in the forms that candidates want. Made once a step."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        """
        Args:
            cos, sin: [num_tokens, rotary_dim / 2].
        """
        self.cos = cos
        self.sin = sin
        self._full: tuple[Tensor, Tensor] | None = None
        self._wide: tuple[Tensor, Tensor] | None = None

    def full(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Both halves side by side: [1, num_tokens, 1, rotary_dim] in the activations' dtype."""
        if self._full is None:
            cos, sin = (torch.cat([half, half], dim=-1).to(dtype)[None, :, None] for half in (self.cos, self.sin))
            self._full = cos, sin
        return self._full

    def wide(self) -> tuple[Tensor, Tensor]:
        """One half: [num_tokens, 1, rotary_dim / 2] float32."""
        if self._wide is None:
            self._wide = self.cos.float().unsqueeze(1), self.sin.float().unsqueeze(1)
        return self._wide


# (q, k, tables) -> rotated (q, k); q and k [num_tokens, heads, head_dim], strided, may be overwritten.
Rotate = Callable[[Tensor, Tensor, RotaryTables], tuple[Tensor, Tensor]]


def rotary_candidates(installed: InstalledOps, family: Family) -> Choice[Rotate, RotaryShape]:
    choice: Choice[Rotate, RotaryShape] = Choice("rotary")
    if family.name != "A1":
        choice.add("npu_apply_rotary_pos_emb", lambda: _apply(installed), _apply_refusal)
    choice.add("npu_rotary_mul", lambda: _multiply(installed), _multiply_refusal(family))
    choice.add("composed", lambda: composed_rotary)
    return choice


def composed_rotary(q: Tensor, k: Tensor, tables: RotaryTables) -> tuple[Tensor, Tensor]:
    cos, sin = tables.wide()
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    parts = [(first * cos - second * sin).to(x.dtype), (second * cos + first * sin).to(x.dtype)]
    if 2 * half < x.shape[-1]:
        parts.append(x[..., 2 * half :])
    return torch.cat(parts, dim=-1)


def _apply(installed: InstalledOps) -> Rotate:
    # The default layout changed from BSH to BSND between releases. Releases without rotary_mode rotate halves.
    op = installed.bind(
        "npu_apply_rotary_pos_emb", "query", "key", "cos", "sin", "layout", where_known={"rotary_mode": "half"}
    )

    def rotate(q: Tensor, k: Tensor, tables: RotaryTables) -> tuple[Tensor, Tensor]:
        cos, sin = tables.full(q.dtype)
        # It works in place, which its schema does not say: never on views into a projection that holds values too.
        query, key = q.unsqueeze(0).contiguous(), k.unsqueeze(0).contiguous()
        query, key = op(query=query, key=key, cos=cos, sin=sin, layout="BSND")
        return query.squeeze(0), key.squeeze(0)

    return rotate


def _multiply(installed: InstalledOps) -> Rotate:
    op = installed.bind("npu_rotary_mul", "input", "r1", "r2", where_known={"rotary_mode": "half"})

    def rotate(q: Tensor, k: Tensor, tables: RotaryTables) -> tuple[Tensor, Tensor]:
        cos, sin = tables.full(q.dtype)
        query: Tensor = op(input=q.unsqueeze(0).contiguous(), r1=cos, r2=sin)
        key: Tensor = op(input=k.unsqueeze(0).contiguous(), r1=cos, r2=sin)
        return query.squeeze(0), key.squeeze(0)

    return rotate


def _apply_refusal(shape: RotaryShape) -> str | None:
    if shape.head_dim not in (64, 128):
        return f"it takes heads of 64 or 128, not {shape.head_dim}"
    return _partial_refusal(shape)


def _multiply_refusal(family: Family) -> Callable[[RotaryShape], str | None]:
    def refusal(shape: RotaryShape) -> str | None:
        if family.name in ("A1", "310P") and shape.head_dim != 128:
            return f"on this chip it takes heads of 128, not {shape.head_dim}"
        if shape.head_dim % 2 or shape.head_dim >= 896:
            return f"it takes even heads under 896, not {shape.head_dim}"
        if shape.num_heads >= 1000:
            return f"it takes fewer than 1000 heads, not {shape.num_heads}"
        return _partial_refusal(shape)

    return refusal


def _partial_refusal(shape: RotaryShape) -> str | None:
    if shape.rotary_dim != shape.head_dim:
        return f"it rotates whole heads of {shape.head_dim}, not {shape.rotary_dim} dimensions of them"
    return None
