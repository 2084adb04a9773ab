"""Attention on a 310P without ATB: prompt and incremental flash attention over ND caches, within that chip's limits."""

from __future__ import annotations

import torch
from torch import Tensor

from text_generation_kernels.npu.atb_attention import token_rows
from text_generation_kernels.npu.attention_rows import Attend, HeadShape, Keys, Run, in_parts, joined
from text_generation_kernels.npu.composed_attention import gather_row
from text_generation_kernels.npu.kv_cache import NpuKVCache
from text_generation_kernels.npu.schemas import InstalledOps

_MAX_ROWS = 256
_UNLIMITED = 2147483647
_ACCURATE = 0


def prompt_flash(installed: InstalledOps) -> Attend:
    """`npu_prompt_flash_attention`: one call a row, with a full mask, since lengths and sparse modes are not for 310P.

    Raises: OpUnavailable.
    """
    name = "npu_prompt_flash_attention"
    op = installed.bind(
        name,
        *("query", "key", "value", "atten_mask", "num_heads", "scale_value", "pre_tokens", "next_tokens"),
        *("input_layout", "num_key_value_heads", "sparse_mode"),
    )
    # Only the default is allowed, and releases differ in it.
    pre_tokens = installed.default_of(name, "pre_tokens")

    def attend(q: Tensor, cache: NpuKVCache, run: Run, scale: float, keys: Keys | None) -> Tensor:
        def call(tokens: Tensor, row: Run) -> Tensor:
            (kv_len,) = row.kv_lens
            k, v = gather_row(cache, row)
            has_prefix = kv_len > row.num_tokens
            out: Tensor = op(
                query=tokens.unsqueeze(0),
                key=k[:kv_len].unsqueeze(0),
                value=v[:kv_len].unsqueeze(0),
                atten_mask=row.remembered("mask", lambda: _mask(row)),
                num_heads=q.shape[1],
                scale_value=scale,
                pre_tokens=pre_tokens,
                next_tokens=_UNLIMITED if has_prefix else 0,
                input_layout="BSND",
                num_key_value_heads=cache.num_kv_heads,
                sparse_mode=0,
            )
            return out.squeeze(0)

        return in_parts(q, run, 1, call)

    return attend


def incremental_flash(installed: InstalledOps) -> Attend:
    """`npu_incre_flash_attention`: decode rows, at most 256 at once; a row of several tokens as one row for each.

    Raises: OpUnavailable.
    """
    op = installed.bind(
        "npu_incre_flash_attention",
        *("query", "key", "value", "actual_seq_lengths", "block_table", "num_heads", "scale_value"),
        *("input_layout", "num_key_value_heads", "block_size", "inner_precise"),
    )

    def attend(q: Tensor, cache: NpuKVCache, run: Run, scale: float, keys: Keys | None) -> Tensor:
        tables, lens = run.remembered("tokens", lambda: _token_tables(run))
        k, v = cache.pages()
        rows = q.flatten(1).unsqueeze(1)  # BSH with one token each
        parts: list[Tensor] = []
        for first in range(0, len(lens), _MAX_ROWS):
            part = slice(first, first + _MAX_ROWS)
            out = op(
                query=rows[part],
                key=k,
                value=v,
                actual_seq_lengths=lens[part],
                block_table=tables[part],
                num_heads=q.shape[1],
                scale_value=scale,
                input_layout="BSH",
                num_key_value_heads=cache.num_kv_heads,
                block_size=cache.block_size,
                inner_precise=_ACCURATE,
            )
            parts.append(out)
        return joined(parts).view(q.shape)

    return attend


def prompt_refusal(shape: HeadShape) -> str | None:
    if shape.longest > 65536:
        return "it takes prompts of up to 65535 tokens"
    return incremental_refusal(shape)


def incremental_refusal(shape: HeadShape) -> str | None:
    if shape.dtype != torch.float16:
        return f"{shape.dtype} is not float16"
    if shape.layout != "nd":
        return "it reads ND caches only"
    if shape.head_dim % 16 or shape.head_dim > 512:
        return f"heads of {shape.head_dim} are not a multiple of 16 up to 512"
    if shape.block_size % 16 or shape.num_kv_heads * shape.head_dim > 65535:
        return "blocks must be a multiple of 16, and key heads of one token up to 65535 wide together"
    return None


def _token_tables(run: Run) -> tuple[Tensor, list[int]]:
    places, lens = token_rows(run)
    if len(places) == run.num_rows:
        return run.block_tables, lens
    rows = torch.tensor(places, dtype=torch.int64).to(run.block_tables.device)
    return run.block_tables.index_select(0, rows), lens


def _mask(row: Run) -> Tensor:
    """[num_tokens, kv_len] bool, True where hidden: what comes after each query, the last of which sees all."""
    (kv_len,) = row.kv_lens
    hidden = torch.ones(row.num_tokens, kv_len, dtype=torch.bool).triu_(kv_len - row.num_tokens + 1)
    return hidden.to(row.block_tables.device)
