"""npu_fused_infer_attention_score, both versions: prefill, chunks and paged decode on A2, A3 and A5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from text_generation_npu_emulator.kernels.attention_math import (
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
from text_generation_npu_emulator.operators import declare_workspace, kernel

_MAX_SEQUENCES = 4096
_LAYOUTS = ("BSH", "BSND", "BNSD", "TND")
# What the second version calls the same arguments.
_NAMES_OF_V2 = {
    "actual_seq_lengths": "actual_seq_qlen",
    "actual_seq_lengths_kv": "actual_seq_kvlen",
    "num_heads": "num_query_heads",
    "scale": "softmax_scale",
    "softmax_lse_flag": "return_softmax_lse",
}


@dataclass(frozen=True, slots=True)
class _Arguments:
    """Those of both versions, under the names of the first."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask
    q_lengths: Sequence[int] | None
    kv_lengths: Sequence[int] | None
    block_table: Tensor | None
    num_heads: int
    num_kv_heads: int
    scale: float
    layout: str
    block_size: int
    inner_precise: int
    wants_lse: bool


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One sequence on the host: q [num_tokens, num_heads, head_dim], k and v [kv_len, num_kv_heads, head_dim]."""

    q: Tensor
    k: Tensor
    v: Tensor


def _check(call: Call, a: _Arguments) -> int:
    """Checks what does not depend on the lengths; the head size."""
    call.require(a.layout in _LAYOUTS, f"input_layout {a.layout!r} is not emulated; use one of {', '.join(_LAYOUTS)}")
    check_contiguous(call, query=a.query, key=a.key, value=a.value)
    check_dtypes(call, a.query, a.key, a.value)
    call.require(a.query.numel() > 0, "query is empty")
    check_heads(call, a.num_heads, a.num_kv_heads)
    rank = {"BSH": 3, "TND": 3}.get(a.layout, 4)
    call.require(a.query.dim() == rank, f"query must have {rank} axes in {a.layout}, got {tuple(a.query.shape)}")
    if a.layout == "BSH":
        call.require(a.query.shape[-1] % a.num_heads == 0, f"{a.query.shape[-1]} is no multiple of {a.num_heads} heads")
        head_dim = a.query.shape[-1] // a.num_heads
    else:
        heads = a.query.shape[1] if a.layout in ("TND", "BNSD") else a.query.shape[2]
        call.require(heads == a.num_heads, f"query has {heads} heads, num_heads is {a.num_heads}")
        head_dim = a.query.shape[-1]
    if a.layout == "TND":
        multi_head = a.num_heads == a.num_kv_heads
        call.require(
            head_dim in (128, 192) or (head_dim == 64 and multi_head),
            f"TND needs a head size of 128 or 192, or 64 where no heads share keys; got {head_dim}",
        )
    else:
        call.require(head_dim % 16 == 0 and head_dim <= 512, f"the head size must be 16..512 by 16, got {head_dim}")
    call.require(a.inner_precise in (0, 1, 2, 3), f"inner_precise must be 0..3, got {a.inner_precise}")
    check_mask(call, a.mask)
    call.require(a.mask.sparse_mode != 1 or a.mask.tensor is not None, "sparse_mode 1 needs a mask")
    return head_dim


def _check_block_size(call: Call, a: _Arguments, is_prefill: bool) -> None:
    size = a.block_size
    if a.layout == "TND":
        call.require(0 < size <= 1024 and size % 16 == 0, f"block_size must be 16..1024 by 16 in TND, got {size}")
    elif is_prefill:
        call.require(size in (128, 256, 384, 512), f"block_size must be 128, 256, 384 or 512 in {a.layout}, got {size}")
    else:
        call.require(0 < size <= 512 and size % 16 == 0, f"block_size must be 16..512 by 16, got {size}")


def _paged(call: Call, a: _Arguments, cache: Tensor, name: str, head_dim: int) -> Tensor:
    """A cache on the host as [num_blocks, block_size, num_kv_heads, head_dim]."""
    host = call.read(cache)
    width = a.num_kv_heads * head_dim
    if host.dim() == 3:
        call.require(
            tuple(host.shape[1:]) == (a.block_size, width),
            f"{name} must be (blocks, {a.block_size}, {width}), got {tuple(host.shape)}",
        )
        call.require(width <= 65535, f"{name}: the last axis may have 65535 elements, got {width}")
        return host.view(-1, a.block_size, a.num_kv_heads, head_dim)
    call.require(
        tuple(host.shape[1:]) == (a.num_kv_heads, a.block_size, head_dim),
        f"{name} must be (blocks, {a.num_kv_heads}, {a.block_size}, {head_dim}), got {tuple(host.shape)}",
    )
    return host.transpose(1, 2)


def _sequences(call: Call, a: _Arguments, head_dim: int) -> list[_Sequence]:
    queries = _queries(call, a)
    num_rows = len(queries)
    if a.block_table is not None:
        call.require(a.kv_lengths is not None, "a block_table needs lengths of keys")
        assert a.kv_lengths is not None
        _check_block_size(call, a, is_prefill=any(len(q) > 1 for q in queries))
        k_cache, v_cache = _paged(call, a, a.key, "key", head_dim), _paged(call, a, a.value, "value", head_dim)
        table = check_block_table(call, a.block_table, a.kv_lengths, num_rows, k_cache)
        return [
            _Sequence(q, pages(k_cache, row, length), pages(v_cache, row, length))
            for q, row, length in zip(queries, table, a.kv_lengths, strict=True)
        ]
    k, v = call.read(a.key), call.read(a.value)
    if a.layout == "TND":
        call.require(a.kv_lengths is not None, "TND needs actual_seq_lengths_kv")
        assert a.kv_lengths is not None
        call.require(k.shape[1] == a.num_kv_heads, f"key has {k.shape[1]} heads, num_key_value_heads {a.num_kv_heads}")
        check_cumulative(call, "actual_seq_lengths_kv", a.kv_lengths, len(k))
        lengths = lengths_of(a.kv_lengths)
        call.require(len(lengths) == num_rows, f"{len(lengths)} lengths of keys for {num_rows} sequences")
        return [_Sequence(q, kk, vv) for q, kk, vv in zip(queries, k.split(lengths), v.split(lengths), strict=True)]
    k, v = by_batch(k, a.layout, a.num_kv_heads), by_batch(v, a.layout, a.num_kv_heads)
    call.require(len(k) == num_rows, f"key has {len(k)} sequences, query {num_rows}")
    call.require(k.shape[2] == a.num_kv_heads, f"key has {k.shape[2]} heads, num_key_value_heads {a.num_kv_heads}")
    lengths = padded_lengths(call, "actual_seq_lengths_kv", a.kv_lengths, num_rows, k.shape[1])
    return [_Sequence(q, kk[:n], vv[:n]) for q, kk, vv, n in zip(queries, k, v, lengths, strict=True)]


def _queries(call: Call, a: _Arguments) -> list[Tensor]:
    q = call.read(a.query)
    if a.layout == "TND":
        call.require(a.q_lengths is not None, "TND needs actual_seq_lengths")
        assert a.q_lengths is not None
        call.require(len(a.q_lengths) <= _MAX_SEQUENCES, f"at most {_MAX_SEQUENCES} sequences, got {len(a.q_lengths)}")
        check_cumulative(call, "actual_seq_lengths", a.q_lengths, len(q))
        return list(q.split(lengths_of(a.q_lengths)))
    batch = by_batch(q, a.layout, a.num_heads)
    lengths = padded_lengths(call, "actual_seq_lengths", a.q_lengths, len(batch), batch.shape[1])
    return [rows[:length] for rows, length in zip(batch, lengths, strict=True)]


def _compute(call: Call, a: _Arguments) -> tuple[Tensor, Tensor]:
    head_dim = _check(call, a)
    sequences = _sequences(call, a, head_dim)
    rows, sums = [], []
    for row, sequence in enumerate(sequences):
        hidden = hidden_by(call, a.mask, row, len(sequence.q), len(sequence.k))
        if hidden is not None and a.inner_precise < 2:
            call.require_loud(
                not bool(hidden.all(-1).any()), f"row {row} has a token that sees nothing: inner_precise must be 2 or 3"
            )
        attended = attend(sequence.q, sequence.k, sequence.v, a.scale, hidden)
        rows.append(attended.out)
        sums.append(attended.maximum + attended.total.log())
    out = _arranged(call, a, rows)
    lse = torch.cat(sums)[..., None] if a.wants_lse else torch.zeros(0, device="cpu")
    return out.to(a.query.dtype), lse


def _arranged(call: Call, a: _Arguments, rows: list[Tensor]) -> Tensor:
    """The rows in the layout of the query; what lies beyond a length is not written."""
    if a.layout == "TND":
        return torch.cat(rows)
    batch = by_batch(call.read(a.query), a.layout, a.num_heads)
    padded = torch.zeros(*batch.shape[:3], rows[0].shape[-1], device="cpu")
    for target, values in zip(padded, rows, strict=True):
        target[: len(values)] = values
    return as_layout(padded, a.layout)


@kernel("npu_fused_infer_attention_score")
@kernel("npu_fused_infer_attention_score_v2", renamed=_NAMES_OF_V2)
def fused_infer_attention_score(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    atten_mask: Tensor | None,
    actual_seq_lengths: Sequence[int] | None,
    actual_seq_lengths_kv: Sequence[int] | None,
    block_table: Tensor | None,
    num_heads: int,
    scale: float,
    pre_tokens: int,
    next_tokens: int,
    input_layout: str,
    num_key_value_heads: int,
    sparse_mode: int,
    inner_precise: int,
    block_size: int,
    softmax_lse_flag: bool,
    workspace: Tensor | None = None,
    out: Sequence[Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """(attention in the query's layout, log-sum-exp)."""
    arguments = _Arguments(
        query,
        key,
        value,
        Mask(atten_mask, sparse_mode, pre_tokens, next_tokens),
        actual_seq_lengths,
        actual_seq_lengths_kv,
        block_table,
        num_heads,
        num_key_value_heads or num_heads,
        scale,
        input_layout,
        block_size,
        inner_precise,
        softmax_lse_flag,
    )
    attention, lse = _compute(call, arguments)
    if out is None:
        return attention, lse
    call.require(len(out) == 2, "out must be [attention, lse]")
    call.require(out[0].shape == attention.shape, f"out[0] must be {tuple(attention.shape)}, got {tuple(out[0].shape)}")
    call.require(out[0].dtype == attention.dtype, f"out[0] must be {attention.dtype}, got {out[0].dtype}")
    call.store(out[0], attention)
    if softmax_lse_flag:
        call.require(out[1].shape == lse.shape, f"out[1] must be {tuple(lse.shape)}, got {tuple(out[1].shape)}")
        call.store(out[1], lse)
    return tuple(out)


for _name in ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2"):
    declare_workspace(f"_{_name}_get_max_workspace", of=_name, without=("workspace", "out"))
