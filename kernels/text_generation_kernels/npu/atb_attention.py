"""Attention by ATB (the NNAL package): paged decode, and flash attention of whole prompts. For A2, A3 and 310P.

Never on A1: nobody upstream tests ATB there, and a user's report has garbage without an error. On a 310P caches and
masks are in FRACTAL_NZ. There a chunk, whose earlier keys no other op can read, is computed as one decode row a token.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from text_generation_kernels.npu.attention_rows import Attend, HeadShape, Keys, Run
from text_generation_kernels.npu.composed_attention import gather_rows
from text_generation_kernels.npu.kv_cache import NpuKVCache
from text_generation_kernels.npu.masks import COMPRESSED_SIZE, Masks
from text_generation_kernels.npu.schemas import InstalledOps

_TOKEN_MULTIPLE_310P = 16
# A mask of this size squared takes 32 MB in float16, and twice that while it is cast.
_LONGEST_MASKED = 4096
_COMPRESSED_MASK = 3  # mask_type


class PagedDecode:
    """`_npu_paged_attention`.

    Args:
        lens_on_host: where the lengths of the rows must lie: on the host for A2 and A3, on the device for a 310P.
    Raises: OpUnavailable.
    """

    def __init__(self, installed: InstalledOps, *, lens_on_host: bool) -> None:
        self._op = installed.bind(
            "_npu_paged_attention",
            *("query", "key_cache", "value_cache", "num_kv_heads", "num_heads", "scale_value"),
            *("block_table", "context_lens", "out"),
        )
        self._lens_on_host = lens_on_host

    def rows(self, q: Tensor, cache: NpuKVCache, run: Run, scale: float, keys: Keys | None) -> Tensor:
        """Rows of one token each."""
        lens = run.remembered("lengths", lambda: self._lengths(list(run.kv_lens), run.block_tables.device))
        return self._call(q, cache, run.block_tables, lens, scale)

    def tokens(self, q: Tensor, cache: NpuKVCache, run: Run, scale: float, keys: Keys | None) -> Tensor:
        """Rows of several tokens: each token as a row of its own that sees what came before it."""
        tables, lens = run.remembered("tokens", lambda: self._token_rows(run))
        return self._call(q, cache, tables, lens, scale)

    def _call(self, q: Tensor, cache: NpuKVCache, tables: Tensor, lens: Tensor, scale: float) -> Tensor:
        out = torch.empty_like(q)
        self._op(
            query=q,
            key_cache=cache.k,
            value_cache=cache.v,
            num_kv_heads=cache.num_kv_heads,
            num_heads=q.shape[1],
            scale_value=scale,
            block_table=tables,
            context_lens=lens,
            out=out,
        )
        return out

    def _token_rows(self, run: Run) -> tuple[Tensor, Tensor]:
        device = run.block_tables.device
        places, lens = token_rows(run)
        tables = run.block_tables.index_select(0, torch.tensor(places, dtype=torch.int64).to(device))
        return tables, self._lengths(lens, device)

    def _lengths(self, lens: list[int], device: torch.device) -> Tensor:
        host = torch.tensor(lens, dtype=torch.int32)
        return host if self._lens_on_host else host.to(device)


def token_rows(run: Run) -> tuple[list[int], list[int]]:
    """Each token of a run as a row of its own: (its row's place, the tokens it sees)."""
    places: list[int] = []
    lens: list[int] = []
    for index, (query_len, kv_len) in enumerate(zip(run.query_lens, run.kv_lens, strict=True)):
        places += [index] * query_len
        lens += range(kv_len - query_len + 1, kv_len + 1)
    return places, lens


def paged_refusal(layout: str) -> Callable[[HeadShape], str | None]:
    """Why paged attention over caches of a layout cannot take some heads."""

    def refusal(shape: HeadShape) -> str | None:
        reason = _type_refusal(shape)
        if reason is not None:
            return reason
        if shape.layout != layout:
            return f"it reads caches in {layout} here"
        if shape.block_size % 16 or shape.num_kv_heads * shape.head_dim % 16:
            return "blocks and the width of a token must be multiples of 16"
        return None

    return refusal


def flash_910b(installed: InstalledOps, masks: Masks) -> Attend:
    """`_npu_flash_attention` on A2 and A3: whole prompts, their keys gathered from an ND cache.

    Raises: OpUnavailable.
    """
    op = installed.bind("_npu_flash_attention", *_FLASH_ARGUMENTS)

    def attend(q: Tensor, cache: NpuKVCache, run: Run, scale: float, keys: Keys | None) -> Tensor:
        own = keys or gather_rows(cache, run)
        out = torch.empty_like(q)
        op(
            query=q,
            key=own.k,
            value=own.v,
            mask=masks.additive(max(run.query_lens), q.dtype),
            seq_len=torch.tensor(run.query_lens, dtype=torch.int32),  # on the host
            scale_value=scale,
            num_heads=q.shape[1],
            num_kv_heads=cache.num_kv_heads,
            out=out,
        )
        return out

    return attend


def flash_310p(installed: InstalledOps, masks: Masks, name: str) -> Attend:
    """`_npu_flash_attention` or its v3 on a 310P: whole prompts, tokens rounded up to 16 in the last of them.

    Raises: OpUnavailable.
    """
    is_v3 = name == "_npu_flash_attention_v3"
    op = installed.bind(name, *_FLASH_ARGUMENTS, *(("mask_type",) if is_v3 else ()))

    def attend(q: Tensor, cache: NpuKVCache, run: Run, scale: float, keys: Keys | None) -> Tensor:
        own = keys or gather_rows(cache, run)
        padding = -q.shape[0] % _TOKEN_MULTIPLE_310P
        query, k, v = (_padded(x, padding) for x in (q, own.k, own.v))
        lens = run.query_lens
        lens[-1] += padding
        size = COMPRESSED_SIZE if is_v3 else max(lens)
        out = torch.empty_like(query)
        op(
            query=query,
            key=k,
            value=v,
            mask=masks.additive_nz(size, q.dtype),
            seq_len=torch.tensor(lens, dtype=torch.int32),  # on the host
            scale_value=scale,
            num_heads=q.shape[1],
            num_kv_heads=cache.num_kv_heads,
            out=out,
            **({"mask_type": _COMPRESSED_MASK} if is_v3 else {}),
        )
        return out[: q.shape[0]]

    return attend


_FLASH_ARGUMENTS = (
    *("query", "key", "value", "mask", "seq_len"),
    *("scale_value", "num_heads", "num_kv_heads", "out"),
)


def flash_refusal(shape: HeadShape) -> str | None:
    """Why the flash attention that wants a full mask cannot take some prompts."""
    if shape.longest > _LONGEST_MASKED:
        return f"a prompt of more than {_LONGEST_MASKED} tokens needs too large a mask"
    return _type_refusal(shape)


def flash_v3_refusal(shape: HeadShape) -> str | None:
    return _type_refusal(shape)


def _type_refusal(shape: HeadShape) -> str | None:
    if shape.dtype not in (torch.float16, torch.bfloat16):
        return f"{shape.dtype} is not a type of 16 bits"
    return None if shape.head_dim % 16 == 0 else f"heads of {shape.head_dim} are not a multiple of 16"


def _padded(x: Tensor, padding: int) -> Tensor:
    """[num_tokens + padding, heads, head_dim], contiguous."""
    return torch.nn.functional.pad(x, (0, 0, 0, 0, 0, padding)) if padding else x.contiguous()
