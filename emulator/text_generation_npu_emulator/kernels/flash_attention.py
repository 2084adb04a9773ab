"""The older attention ops: prompt, incremental and training flash attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from text_generation_npu_emulator.kernels.attention_math import (
    INT_MAX,
    Mask,
    as_layout,
    attend,
    by_batch,
    check_block_table,
    check_contiguous,
    check_cumulative,
    check_dtypes,
    check_heads,
    check_mask,
    hidden_by,
    lengths_of,
    padded_lengths,
    pages,
)
from text_generation_npu_emulator.launch import Call
from text_generation_npu_emulator.operators import kernel


@kernel("npu_prompt_flash_attention")
def prompt_flash_attention(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    atten_mask: Tensor | None,
    actual_seq_lengths: Sequence[int] | None,
    num_heads: int,
    scale_value: float,
    pre_tokens: int,
    next_tokens: int,
    input_layout: str,
    num_key_value_heads: int,
    actual_seq_lengths_kv: Sequence[int] | None,
    sparse_mode: int,
) -> Tensor:
    """Prefill. next_tokens is 0 unless it is given, and has no effect without a mask."""
    num_kv_heads = num_key_value_heads or num_heads
    check_dtypes(call, query, key, value)
    check_contiguous(call, query=query, key=key, value=value)
    check_heads(call, num_heads, num_kv_heads)
    mask = Mask(atten_mask, sparse_mode, pre_tokens, next_tokens)
    check_mask(call, mask)
    call.require(query.numel() > 0, "query is empty")
    call.require_loud(
        atten_mask is not None or next_tokens != 0,
        "next_tokens 0 without a mask is ignored: every token sees all; pass a mask, or next_tokens=2147483647",
    )
    if call.soc.family == "310P":
        call.require(
            input_layout in ("BSH", "BSND", "BNSD"), f"input_layout must be BSH, BSND or BNSD, got {input_layout}"
        )
        call.require(
            actual_seq_lengths is None and actual_seq_lengths_kv is None, "actual_seq_lengths are not supported"
        )
        call.require(sparse_mode == 0, f"sparse_mode must be 0, got {sparse_mode}")
        call.require(next_tokens in (0, INT_MAX), f"next_tokens must be 0 or {INT_MAX}, got {next_tokens}")
        call.require(pre_tokens in (INT_MAX, 2147473647), f"pre_tokens must be its default, got {pre_tokens}")
    if input_layout == "TND":
        return _varlen(call, (query, key, value), (actual_seq_lengths, actual_seq_lengths_kv), scale_value, mask)[0]
    call.require(input_layout in ("BSH", "BSND", "BNSD"), f"input_layout {input_layout!r} is not emulated")
    q = by_batch(call.read(query), input_layout, num_heads)
    k, v = (by_batch(call.read(t), input_layout, num_kv_heads) for t in (key, value))
    _check_batch(call, q, k, num_heads, num_kv_heads)
    q_lengths = padded_lengths(call, "actual_seq_lengths", actual_seq_lengths, len(q), q.shape[1])
    kv_lengths = padded_lengths(call, "actual_seq_lengths_kv", actual_seq_lengths_kv, len(q), k.shape[1])
    out = torch.zeros(*q.shape[:3], v.shape[-1], device="cpu")
    for row, (n, m) in enumerate(zip(q_lengths, kv_lengths, strict=True)):
        hidden = hidden_by(call, mask, row, n, m)
        out[row, :n] = attend(q[row, :n], k[row, :m], v[row, :m], scale_value, hidden).out
    return as_layout(out, input_layout).to(query.dtype)


def _check_batch(call: Call, q: Tensor, k: Tensor, num_heads: int, num_kv_heads: int) -> None:
    batch, length, heads, head_dim = q.shape
    call.require(batch <= 128, f"at most 128 sequences, got {batch}")
    call.require(length <= 65535, f"at most 65535 tokens, got {length}")
    call.require(head_dim % 16 == 0 and head_dim <= 512, f"the head size must be 16..512 by 16, got {head_dim}")
    call.require(heads == num_heads, f"query has {heads} heads, num_heads is {num_heads}")
    call.require(
        k.shape[2] == num_kv_heads and k.shape[0] == batch and k.shape[3] == head_dim,
        f"key must have {batch} sequences of {num_kv_heads} heads of {head_dim}, got {tuple(k.shape)}",
    )


def _varlen(
    call: Call,
    qkv: tuple[Tensor, Tensor, Tensor],
    ends: tuple[Sequence[int] | None, Sequence[int] | None],
    scale: float,
    mask: Mask,
) -> tuple[Tensor, Tensor, Tensor]:
    """(attention, maxima, sums) of sequences that lie one after the other."""
    q, k, v = (call.read(tensor) for tensor in qkv)
    call.require(ends[0] is not None and ends[1] is not None, "TND needs the cumulative lengths of queries and keys")
    assert ends[0] is not None
    assert ends[1] is not None
    check_cumulative(call, "the lengths of queries", ends[0], len(q))
    check_cumulative(call, "the lengths of keys", ends[1], len(k))
    call.require(len(ends[0]) == len(ends[1]), f"{len(ends[1])} lengths of keys for {len(ends[0])} sequences")
    parts = []
    lengths = lengths_of(ends[0]), lengths_of(ends[1])
    for row, (qq, kk, vv) in enumerate(zip(q.split(lengths[0]), k.split(lengths[1]), v.split(lengths[1]), strict=True)):
        parts.append(attend(qq, kk, vv, scale, hidden_by(call, mask, row, len(qq), len(kk))))
    out, maxima, sums = (torch.cat(list(column)) for column in zip(*parts, strict=True))
    return out.to(q.dtype), maxima, sums


@kernel("npu_incre_flash_attention")
def incre_flash_attention(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    atten_mask: Tensor | None,
    actual_seq_lengths: Sequence[int] | None,
    block_table: Tensor | None,
    num_heads: int,
    scale_value: float,
    input_layout: str,
    num_key_value_heads: int,
    block_size: int,
    inner_precise: int,
) -> Tensor:
    """Decode: one query token for each sequence."""
    num_kv_heads = num_key_value_heads or num_heads
    check_dtypes(call, query, key, value)
    check_contiguous(call, query=query, key=key, value=value)
    check_heads(call, num_heads, num_kv_heads)
    call.require(input_layout in ("BSH", "BSND", "BNSD"), f"input_layout {input_layout!r} is not supported")
    call.require(inner_precise in (0, 1), f"inner_precise must be 0 or 1, got {inner_precise}")
    call.require(atten_mask is None, "a mask is not emulated; give lengths")
    q = by_batch(call.read(query), input_layout, num_heads)
    num_rows, num_tokens, _, head_dim = q.shape
    call.require(num_tokens == 1, f"one query token for each sequence, got {num_tokens}")
    if call.soc.family == "310P":
        call.require(num_rows <= 256, f"at most 256 sequences, got {num_rows}")
    if block_table is None:
        k, v = (by_batch(call.read(t), input_layout, num_kv_heads) for t in (key, value))
        lengths = padded_lengths(call, "actual_seq_lengths", actual_seq_lengths, num_rows, k.shape[1])
        _check_longest(call, lengths)
        rows = [attend(q[i], k[i, :n], v[i, :n], scale_value).out for i, n in enumerate(lengths)]
    else:
        call.require(actual_seq_lengths is not None, "a block_table needs actual_seq_lengths")
        assert actual_seq_lengths is not None
        call.require(block_size > 0 and block_size % 16 == 0, f"block_size must be a multiple of 16, got {block_size}")
        _check_longest(call, actual_seq_lengths)
        k, v = (_incre_cache(call, cache, input_layout, num_kv_heads, block_size, head_dim) for cache in (key, value))
        table = check_block_table(call, block_table, actual_seq_lengths, num_rows, k)
        rows = [
            attend(q[i], pages(k, table[i], n), pages(v, table[i], n), scale_value).out
            for i, n in enumerate(actual_seq_lengths)
        ]
    return as_layout(torch.stack(rows), input_layout).to(query.dtype)


def _check_longest(call: Call, lengths: Sequence[int]) -> None:
    if call.soc.family == "310P":
        call.require(max(lengths) <= 65536, f"at most 65536 keys, got {max(lengths)}")


def _incre_cache(call: Call, cache: Tensor, layout: str, num_kv_heads: int, block_size: int, head_dim: int) -> Tensor:
    """[num_blocks, block_size, num_kv_heads, head_dim]: a four-axis cache goes with BNSD, a three-axis one with BSH."""
    host = call.read(cache)
    if layout == "BNSD" and host.dim() == 4:
        expected: tuple[int, ...] = (num_kv_heads, block_size, head_dim)
        call.require(
            tuple(host.shape[1:]) == expected, f"the cache must be (blocks, {expected}), got {tuple(host.shape)}"
        )
        return host.transpose(1, 2)
    width = num_kv_heads * head_dim
    call.require(
        host.dim() == 3 and tuple(host.shape[1:]) == (block_size, width),
        f"the cache must be (blocks, {block_size}, {width}), got {tuple(host.shape)}",
    )
    call.require(width <= 65536, f"the cache's last axis may have 65536 elements, got {width}")
    return host.view(-1, block_size, num_kv_heads, head_dim)


@kernel("npu_fusion_attention", capture_refusal="it is an op for training, and its lists are read on the host")
def fusion_attention(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    atten_mask: Tensor | None,
    scale: float,
    keep_prob: float,
    pre_tockens: int,
    next_tockens: int,
    inner_precise: int,
    actual_seq_qlen: Sequence[int] | None,
    actual_seq_kvlen: Sequence[int] | None,
    sparse_mode: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """(attention, maxima, sums, nothing, seed, offset, length of a random mask)."""
    check_dtypes(call, query, key, value)
    call.require(input_layout == "TND", f"input_layout {input_layout!r} is not emulated")
    call.require(keep_prob == 1, "dropout is not emulated")
    call.require(query.shape[1] == head_num, f"query has {query.shape[1]} heads, head_num is {head_num}")
    call.require(query.shape[2] <= 768, f"the head size may be 768, got {query.shape[2]}")
    check_heads(call, head_num, key.shape[1])
    mask = Mask(atten_mask, sparse_mode, pre_tockens, next_tockens)
    check_mask(call, mask)
    call.require(len(actual_seq_qlen or ()) <= 1024, "at most 1024 sequences in TND")
    out, maxima, sums = _varlen(call, (query, key, value), (actual_seq_qlen, actual_seq_kvlen), scale, mask)
    eight = (maxima[..., None].expand(-1, -1, 8), sums[..., None].expand(-1, -1, 8))
    return out, eight[0].contiguous(), eight[1].contiguous(), torch.empty(0, dtype=query.dtype, device="cpu"), 0, 0, 0
