"""How a dtype is called in messages and reports."""

from __future__ import annotations

import torch


def dtype_name(dtype: torch.dtype) -> str:
    """Without torch's prefix: "float16", as options spell it."""
    return str(dtype).removeprefix("torch.")
