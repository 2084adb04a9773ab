"""ATB's attention ops, on A2, A3 and 310P. They write into `out`; 310P wants masks and caches in FRACTAL_NZ."""

from __future__ import annotations

import torch
from torch import Tensor

from text_generation_npu_emulator.kernels.attention_math import (
    COMPRESSED,
    attend,
    causal,
    check_block_table,
    check_compressed_mask,
    check_contiguous,
    check_dtypes,
    check_heads,
    host_lengths,
    pages,
    spread_compressed,
)
from text_generation_npu_emulator.launch import Call
from text_generation_npu_emulator.operators import declare_workspace, kernel

# What ATB multiplies a bfloat16 mask with.
_BFLOAT16_FACTOR = -10000.0
# Scores this low are hidden.
_HIDDEN_BELOW = -5000.0


def _check_heads_of_query(call: Call, query: Tensor, num_heads: int, num_kv_heads: int) -> None:
    check_heads(call, num_heads, num_kv_heads)
    call.require(query.dim() == 3, f"query must be (tokens, heads, head size), got {tuple(query.shape)}")
    call.require(query.shape[1] == num_heads, f"query has {query.shape[1]} heads, num_heads is {num_heads}")


def _check_tokens(
    call: Call, query: Tensor, key: Tensor, value: Tensor, lengths: list[int], num_heads: int, num_kv_heads: int
) -> None:
    check_contiguous(call, query=query, key=key, value=value)
    check_dtypes(call, query, key, value)
    _check_heads_of_query(call, query, num_heads, num_kv_heads)
    call.require(key.shape[1] == num_kv_heads, f"key has {key.shape[1]} heads, num_kv_heads is {num_kv_heads}")
    call.require(
        sum(lengths) == len(query) == len(key), f"seq_len must add up to {len(query)} tokens, got {sum(lengths)}"
    )
    if call.soc.family == "310P":
        call.require(
            len(query) % 16 == 0,
            f"the number of tokens must be a multiple of 16, got {len(query)}; pad, and add the padding to the last "
            "sequence's length",
        )


def _each(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: list[int],
    scale: float,
    hidden: Tensor | None = None,
    added: Tensor | None = None,
) -> Tensor:
    """Sequences that lie one after the other; `hidden` and `added`: [longest, longest]."""
    q, k, v = (call.read(tensor).split(lengths) for tensor in (query, key, value))
    parts = []
    for qq, kk, vv, n in zip(q, k, v, lengths, strict=True):
        masks = [None if mask is None else mask[:n, :n] for mask in (hidden, added)]
        parts.append(attend(qq, kk, vv, scale, *masks).out)
    return torch.cat(parts).to(query.dtype)


def _nz_mask(call: Call, mask: Tensor) -> Tensor:
    """A mask of (1, columns / 16, rows, 16) in FRACTAL_NZ, as (rows, columns)."""
    shape = tuple(mask.shape)
    call.require(call.is_nz(mask), "the mask must be in FRACTAL_NZ")
    call.require(
        len(shape) == 4 and shape[0] == 1 and shape[3] == 16 and shape[2] % 16 == 0,
        f"the mask must be (1, columns / 16, rows, 16), got {shape}",
    )
    return call.read(mask)[0].permute(1, 0, 2).reshape(shape[2], -1)


def _added(call: Call, mask: Tensor, query: Tensor, longest: int) -> Tensor:
    """An additive mask in float32, checked for size and for what it holds."""
    call.require(mask.dtype == query.dtype, f"the mask must have query's dtype {query.dtype}, got {mask.dtype}")
    plane = _nz_mask(call, mask) if call.soc.family == "310P" else call.read(mask).reshape(mask.shape[-2:])
    call.require(
        plane.shape[0] == plane.shape[1] and plane.shape[0] >= longest,
        f"the mask must be square and cover {longest} tokens, got {tuple(plane.shape)}",
    )
    wide = plane[:longest, :longest].float()
    if mask.dtype == torch.bfloat16:
        call.require_loud(
            bool(((wide == 0) | (wide == 1)).all()), "a bfloat16 mask holds 1 where a position is hidden, 0 elsewhere"
        )
        return wide * _BFLOAT16_FACTOR
    call.require_loud(bool((wide <= 0).all()), "a float16 mask is added: it holds a large negative number where hidden")
    if call.soc.only_saturates:
        call.require_loud(bool(wide.isfinite().all()), "the mask must be finite on a chip that saturates; use -10000")
    return wide


@kernel("_npu_flash_attention", on_host=("seq_len",), nz=("mask",))
def flash_attention(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    seq_len: Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: Tensor,
) -> None:
    lengths = host_lengths(call, "seq_len", seq_len)
    _check_tokens(call, query, key, value, lengths, num_heads, num_kv_heads)
    added = _added(call, mask, query, max(lengths))
    call.store(out, _each(call, query, key, value, lengths, scale_value, added=added))


@kernel("_npu_flash_attention_v3", on_host=("seq_len",), nz=("mask",))
def flash_attention_v3(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    seq_len: Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: Tensor,
    mask_type: int | None = 3,
) -> None:
    """With one fixed mask of 2048 x 2048 for any length."""
    lengths = host_lengths(call, "seq_len", seq_len)
    _check_tokens(call, query, key, value, lengths, num_heads, num_kv_heads)
    call.require(mask_type == 3, f"mask_type must be 3, got {mask_type}")
    call.require(mask.dtype == query.dtype, f"the mask must have query's dtype {query.dtype}, got {mask.dtype}")
    _check_fixed_mask(call, _nz_mask(call, mask))
    hidden = causal(max(lengths), max(lengths))
    call.store(out, _each(call, query, key, value, lengths, scale_value, hidden))


def _check_fixed_mask(call: Call, plane: Tensor) -> None:
    call.require(
        tuple(plane.shape) == (COMPRESSED, COMPRESSED), f"the mask must be 2048 x 2048, got {tuple(plane.shape)}"
    )
    call.require_loud(
        torch.equal(plane.float() <= _HIDDEN_BELOW, causal(COMPRESSED, COMPRESSED)),
        "the mask must be -10000 or less strictly above the diagonal and 0 elsewhere",
    )


@kernel("_npu_flash_attention_unpad", on_host=("seq_len",))
def flash_attention_unpad(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seq_len: Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: Tensor,
) -> None:
    """Without a mask: every token sees all of its sequence."""
    lengths = host_lengths(call, "seq_len", seq_len)
    _check_tokens(call, query, key, value, lengths, num_heads, num_kv_heads)
    call.store(out, _each(call, query, key, value, lengths, scale_value))


def _cache(call: Call, cache: Tensor, name: str, num_kv_heads: int, head_dim: int) -> Tensor:
    """A cache on the host as [num_blocks, block_size, num_kv_heads, head_dim]."""
    check_contiguous(call, **{name: cache})
    if call.soc.family != "310P":
        call.require(not call.is_nz(cache), f"{name} is in FRACTAL_NZ, which only the kernel of 310P reads")
        call.require(
            cache.dim() == 4 and cache.shape[2] == num_kv_heads,
            f"{name} must be (blocks, block size, {num_kv_heads}, head size), got {tuple(cache.shape)}",
        )
        return call.read(cache)
    call.require(call.is_nz(cache), f"{name} must be in FRACTAL_NZ on this chip")
    call.require(
        cache.dim() == 4 and cache.shape[3] == 16 and cache.shape[1] * 16 == num_kv_heads * head_dim,
        f"{name} must be (blocks, {num_kv_heads * head_dim // 16}, block size, 16), got {tuple(cache.shape)}",
    )
    host = call.read(cache)
    return host.permute(0, 2, 1, 3).reshape(host.shape[0], host.shape[2], num_kv_heads, head_dim)


def _check_decode(call: Call, query: Tensor, out: Tensor, num_heads: int, num_kv_heads: int) -> None:
    check_contiguous(call, query=query, out=out)
    check_dtypes(call, query)
    _check_heads_of_query(call, query, num_heads, num_kv_heads)
    call.require(out.dtype == query.dtype, f"out must be {query.dtype}, got {out.dtype}")


@kernel("_npu_paged_attention", anywhere=("context_lens",), nz=("key_cache", "value_cache"))
def paged_attention(
    call: Call,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: Tensor,
    context_lens: Tensor,
    out: Tensor,
    workspace: Tensor | None = None,
) -> None:
    """Decode: one query token for each sequence."""
    _check_decode(call, query, out, num_heads, num_kv_heads)
    head_dim = query.shape[2]
    k = _cache(call, key_cache, "key_cache", num_kv_heads, head_dim)
    v = _cache(call, value_cache, "value_cache", num_kv_heads, head_dim)
    lengths = host_lengths(call, "context_lens", context_lens)
    table = check_block_table(call, block_table, lengths, len(query), k)
    q = call.read(query)
    rows = [
        attend(q[i : i + 1], pages(k, table[i], n), pages(v, table[i], n), scale_value).out
        for i, n in enumerate(lengths)
    ]
    call.store(out, torch.cat(rows).to(query.dtype))


declare_workspace("_npu_paged_attention_get_workspace", of="_npu_paged_attention", without=("workspace",))


def _check_chunks(
    call: Call, query: Tensor, out: Tensor, num_heads: int, num_kv_heads: int, q_lens: list[int], kv_lens: list[int]
) -> None:
    _check_decode(call, query, out, num_heads, num_kv_heads)
    call.require(sum(q_lens) == len(query), f"seq_len must add up to {len(query)} tokens, got {sum(q_lens)}")
    call.require(len(q_lens) == len(kv_lens), f"{len(kv_lens)} context_lens for {len(q_lens)} sequences")
    call.require(
        all(n <= m for n, m in zip(q_lens, kv_lens, strict=True)),
        f"context_lens count a row's new tokens, too: {kv_lens} for {q_lens} new ones",
    )


@kernel(
    "_npu_paged_attention_splitfuse",
    "_npu_paged_attention_splitfuse_v2",
    on_host=("seq_len",),
    anywhere=("context_lens",),
    nz=("key_cache", "value_cache", "mask"),
)
def paged_attention_splitfuse(
    call: Call,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    mask: Tensor,
    seq_len: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    out: Tensor,
    mask_type: int | None = None,
) -> None:
    """Chunks over pages.

    The mask is the compressed one of int8 on A2, and on 310P an additive row in FRACTAL_NZ for each query token; the
    second version takes a compressed additive one of float16 in ND there.
    """
    q_lens, kv_lens = host_lengths(call, "seq_len", seq_len), host_lengths(call, "context_lens", context_lens)
    _check_chunks(call, query, out, num_heads, num_kv_heads, q_lens, kv_lens)
    head_dim = query.shape[2]
    k = _cache(call, key_cache, "key_cache", num_kv_heads, head_dim)
    v = _cache(call, value_cache, "value_cache", num_kv_heads, head_dim)
    table = check_block_table(call, block_table, kv_lens, len(q_lens), k)
    rows_of_mask = None
    is_v2 = call.name.endswith("_v2")
    if is_v2:
        call.require(mask_type == 5, f"mask_type must be 5, got {mask_type}")
        call.require(mask.dtype == torch.float16 and not call.is_nz(mask), "the mask must be float16 in ND")
        _check_fixed_mask(call, call.read(mask).reshape(mask.shape[-2:]))
    elif call.soc.family == "310P":
        rows_of_mask = _nz_mask(call, mask).float()
        call.require(
            rows_of_mask.shape[0] >= len(query) and rows_of_mask.shape[1] >= max(kv_lens),
            f"the mask must have a row for each of {len(query)} tokens and {max(kv_lens)} columns",
        )
    else:
        check_compressed_mask(call, mask)
    parts, start = [], 0
    for i, (q, n) in enumerate(zip(call.read(query).split(q_lens), kv_lens, strict=True)):
        hidden = added = None
        if rows_of_mask is not None:
            added = rows_of_mask[start : start + len(q), :n]
        elif is_v2:
            hidden = causal(len(q), n)
        else:
            hidden = spread_compressed(call, mask, len(q), n, to_the_end=True)
        parts.append(attend(q, pages(k, table[i], n), pages(v, table[i], n), scale_value, hidden, added).out)
        start += len(q)
    call.store(out, torch.cat(parts).to(query.dtype))
