"""Attention masks of the fused ops. Each is built here and nowhere else: a wrong one gives wrong text and no error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from text_generation_kernels.npu.kv_cache import FRACTAL_NZ

COMPRESSED_SIZE = 2048
# What stands for minus infinity where a chip saturates: the value that 310P's own paged attention uses.
HIDDEN_310P = -10000.0


class Masks:
    """The masks of one device, made when first wanted.

    Args:
        torch_npu: the module.
        device: where the masks lie.
    """

    def __init__(self, torch_npu: Any, device: torch.device) -> None:
        self._torch_npu = torch_npu
        self._device = device
        self._made: dict[tuple[str, int, torch.dtype], Tensor] = {}

    def compressed(self, dtype: torch.dtype = torch.int8) -> Tensor:
        """[2048, 2048], 1 where hidden: above the diagonal. What sparse_mode 3 wants, however long the rows are."""
        return self._remembered("compressed", COMPRESSED_SIZE, dtype)

    def additive(self, size: int, dtype: torch.dtype) -> Tensor:
        """[n, n] with n >= size, for ATB's flash attention on A2 and A3: 0 where seen; hidden is -inf in float16 and 1
        in bfloat16."""
        return self._remembered("additive", _rounded(size), dtype)

    def additive_nz(self, size: int, dtype: torch.dtype) -> Tensor:
        """[1, n / 16, n, 16] in FRACTAL_NZ with n >= size, for ATB's flash attention on a 310P: -10000 where hidden."""
        return self._remembered("additive_nz", _rounded(size), dtype)

    def _remembered(self, kind: str, size: int, dtype: torch.dtype) -> Tensor:
        key = kind, size, dtype
        if key not in self._made:
            for other in [made for made in self._made if made[0] == kind and made[2] == dtype]:
                del self._made[other]  # of another size: a long prompt's mask is large
            self._made[key] = self._make(kind, size, dtype)
        return self._made[key]

    def _make(self, kind: str, size: int, dtype: torch.dtype) -> Tensor:
        hidden = torch.ones(size, size, dtype=torch.bool).triu_(diagonal=1)
        if kind == "compressed":
            return hidden.to(dtype).to(self._device)
        if kind == "additive":
            value = 1.0 if dtype == torch.bfloat16 else float("-inf")
            return torch.zeros(size, size, dtype=dtype).masked_fill_(hidden, value).to(self._device)
        mask = torch.zeros(size, size, dtype=dtype).masked_fill_(hidden, HIDDEN_310P)
        columns = mask.view(size, size // 16, 16).transpose(0, 1).unsqueeze(0).contiguous()
        cast: Tensor = self._torch_npu.npu_format_cast(columns.to(self._device), FRACTAL_NZ)
        return cast


def _rounded(size: int) -> int:
    """A power of two, at least 128, so that growing prompts do not make a mask each."""
    return max(128, 1 << (size - 1).bit_length())
