"""Attention on host tensors in float32, masks and page tables, and the checks that several attention ops share."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from text_generation_npu_emulator.launch import Call

COMPRESSED = 2048  # rows and columns of the compressed causal mask
INT_MAX = 2147483647
MASK_DTYPES = (torch.bool, torch.int8, torch.uint8)


class Mask(NamedTuple):
    """What an op of CANN is told about who sees whom."""

    tensor: Tensor | None
    sparse_mode: int
    pre_tokens: int
    next_tokens: int


class Attended(NamedTuple):
    """One sequence's attention, in float32."""

    out: Tensor  # [num_tokens, num_heads, head_dim]
    maximum: Tensor  # [num_tokens, num_heads]
    total: Tensor  # [num_tokens, num_heads]: sum(exp(score - maximum))


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, hidden: Tensor | None = None, added: Tensor | None = None
) -> Attended:
    """Softmax attention of one sequence; a row that sees nothing gives zeros.

    Args:
        q: [num_tokens, num_heads, head_dim]; k, v: [kv_len, num_kv_heads, head_dim].
        hidden: [num_tokens, kv_len] bool, True where a position must not be seen.
        added: [num_tokens, kv_len] float32, added to the scaled scores.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    group = num_heads // num_kv_heads
    # [num_kv_heads, group * num_tokens, head_dim]: query heads of one key head side by side.
    folded = q.float().reshape(num_tokens, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    folded = folded.reshape(num_kv_heads, group * num_tokens, head_dim)
    scores = torch.bmm(folded, k.float().permute(1, 2, 0)) * scale
    scores = scores.view(num_kv_heads, group, num_tokens, -1)
    if added is not None:
        scores = scores + added
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    maximum = (
        scores.amax(-1, keepdim=True) if scores.shape[-1] else scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    )
    weights = (scores - maximum.nan_to_num(0.0, 0.0, 0.0)).exp()
    total = weights.sum(-1, keepdim=True)
    weights = weights / total.clamp(min=1e-38)
    out = torch.bmm(weights.view(num_kv_heads, group * num_tokens, -1), v.float().permute(1, 0, 2))
    out = out.view(num_kv_heads, group, num_tokens, -1).permute(2, 0, 1, 3).reshape(num_tokens, num_heads, -1)

    def by_token(x: Tensor) -> Tensor:  # [num_kv_heads, group, num_tokens, 1] to [num_tokens, num_heads]
        return x.squeeze(-1).permute(2, 0, 1).reshape(num_tokens, num_heads)

    return Attended(out, by_token(maximum), by_token(total))


def by_batch(tensor: Tensor, layout: str, heads: int) -> Tensor:
    """[batch, length, heads, head_dim] of a padded layout."""
    if layout == "BSH":
        return tensor.view(*tensor.shape[:2], heads, -1)
    return tensor.transpose(1, 2) if layout == "BNSD" else tensor


def as_layout(batch: Tensor, layout: str) -> Tensor:
    """A padded layout of [batch, length, heads, head_dim]."""
    if layout == "BSH":
        return batch.flatten(2)
    return batch.transpose(1, 2).contiguous() if layout == "BNSD" else batch


def padded_lengths(call: Call, name: str, given: Sequence[int] | None, num_rows: int, longest: int) -> list[int]:
    """The lengths of a padded layout's rows: one for each, one for all, or none given where all are the longest."""
    lengths = [longest] if given is None else list(given)
    lengths = lengths * num_rows if len(lengths) == 1 else lengths
    call.require(
        len(lengths) == num_rows and all(0 <= length <= longest for length in lengths),
        f"{name} must be {num_rows} lengths of at most {longest}, got {lengths}",
    )
    return lengths


def lengths_of(cumulative: Sequence[int]) -> list[int]:
    """Differences of ends without a leading zero."""
    return [end - start for start, end in itertools.pairwise([0, *cumulative])]


def check_cumulative(call: Call, name: str, ends: Sequence[int], total: int) -> None:
    """Ends of sequences that lie one after the other in `total` rows."""
    call.require(len(ends) > 0, f"{name} is empty")
    call.require(all(length >= 0 for length in lengths_of(ends)), f"{name} must be cumulative, got {list(ends)}")
    call.require(
        ends[-1] == total, f"{name} must be cumulative and end with the number of rows {total}, got {list(ends)}"
    )


def check_dtypes(call: Call, query: Tensor, *others: Tensor) -> None:
    allowed = "float16 or bfloat16" if call.soc.has_bfloat16 else "float16"
    call.require(query.dtype in (torch.float16, torch.bfloat16), f"query must be {allowed}, got {query.dtype}")
    dtypes = [tensor.dtype for tensor in (query, *others)]
    call.require(len(set(dtypes)) == 1, f"dtypes differ: {', '.join(map(str, dtypes))}")


def check_heads(call: Call, num_heads: int, num_kv_heads: int) -> None:
    call.require(num_heads % num_kv_heads == 0, f"{num_heads} heads cannot share {num_kv_heads} key heads")
    call.require(num_heads // num_kv_heads <= 64, f"at most 64 heads may share a key head, got {num_heads}")
    call.require(num_heads <= 256, f"at most 256 heads, got {num_heads}")


def check_contiguous(call: Call, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        call.require(tensor.is_contiguous(), f"{name} must be contiguous")


def check_block_table(call: Call, table: Tensor, kv_lens: Sequence[int], num_rows: int, cache: Tensor) -> Tensor:
    """A table of pages of a cache [num_blocks, block_size, ...], checked against the lengths; on the host, int64.

    A row that needs the same page twice was given a length that is not its own: a cumulative one, most likely.
    """
    call.require(table.dtype == torch.int32, f"block_table must be int32, got {table.dtype}")
    call.require(table.dim() == 2, f"block_table must have two axes, got {tuple(table.shape)}")
    call.require(table.shape[0] == num_rows, f"block_table has {table.shape[0]} rows for {num_rows} sequences")
    call.require(len(kv_lens) == num_rows, f"{len(kv_lens)} lengths of keys for {num_rows} sequences")
    num_blocks, block_size = cache.shape[:2]
    host = call.read(table).long()
    for row, length in enumerate(kv_lens):
        call.require(length >= 0, f"row {row}: length {length} is negative")
        pages = -(-length // block_size)
        call.require(
            pages <= table.shape[1],
            f"row {row}: {length} keys need {pages} blocks, block_table has {table.shape[1]}; with a block_table, "
            "lengths of keys are per sequence, not cumulative",
        )
        used = host[row, :pages]
        call.require(
            bool(((used >= 0) & (used < num_blocks)).all()), f"row {row}: blocks must lie within 0..{num_blocks - 1}"
        )
        call.require_loud(
            len(used.unique()) == len(used),
            f"row {row}: {length} keys need {pages} blocks, and its block_table repeats one; with a block_table, "
            "lengths of keys are per sequence, not cumulative",
        )
    return host


def causal(num_tokens: int, kv_len: int, to_the_end: bool = True) -> Tensor:
    """[num_tokens, kv_len] bool, True above the diagonal that ends lower right, or begins upper left."""
    shift = kv_len - num_tokens if to_the_end else 0
    return torch.ones(num_tokens, kv_len, dtype=torch.bool, device="cpu").triu(1 + shift)


def check_mask(call: Call, mask: Mask) -> None:
    """Whether a mask is of the kind that its sparse_mode wants."""
    tensor, mode = mask.tensor, mask.sparse_mode
    call.require(mode in (0, 1, 2, 3, 4), f"sparse_mode must be 0..4, got {mode}")
    is_compressed = mode in (2, 3, 4)
    call.require_loud(
        tensor is not None or not is_compressed,
        f"sparse_mode {mode} needs the compressed mask: without one it is ignored, and every token sees all",
    )
    if tensor is None:
        return
    if is_compressed:
        check_compressed_mask(call, tensor)
    else:
        call.require(tensor.dtype in MASK_DTYPES, f"atten_mask must be bool, int8 or uint8, got {tensor.dtype}")


def check_compressed_mask(call: Call, mask: Tensor) -> None:
    """The fixed mask of 2048 x 2048: 1 above the diagonal, which means hidden."""
    call.require(mask.dtype in MASK_DTYPES, f"atten_mask must be bool, int8 or uint8, got {mask.dtype}")
    shape = tuple(mask.shape)
    call.require(
        shape[-2:] == (COMPRESSED, COMPRESSED) and all(size == 1 for size in shape[:-2]),
        f"this sparse_mode needs the compressed mask of 2048 x 2048, got {shape}",
    )
    block = call.machine.tensors.block(mask)
    key = (block.serial, block.generation, int(mask.storage_offset()))
    if key in call.machine.checked_masks:
        return
    values = call.read(mask).reshape(COMPRESSED, COMPRESSED).bool()
    call.require_loud(
        torch.equal(values, causal(COMPRESSED, COMPRESSED)),
        "the compressed mask must be 1 strictly above the diagonal and 0 elsewhere: 1 means hidden",
    )
    call.machine.checked_masks.add(key)


def spread_compressed(call: Call, mask: Tensor, num_tokens: int, kv_len: int, to_the_end: bool) -> Tensor:
    """What the kernel makes of a compressed mask for one sequence: every diagonal takes the mask's value on its own."""
    values = call.read(mask).reshape(COMPRESSED, COMPRESSED).bool()
    shift = kv_len - num_tokens if to_the_end else 0
    distance = torch.arange(kv_len, device="cpu") - torch.arange(num_tokens, device="cpu")[:, None] - shift
    right = values[0][distance.clamp(0, COMPRESSED - 1)]
    left = values[:, 0][(-distance).clamp(0, COMPRESSED - 1)]
    return torch.where(distance > 0, right, left)


def band(num_tokens: int, kv_len: int, pre_tokens: int, next_tokens: int) -> Tensor:
    """True outside the band: further back than pre_tokens, or further ahead than next_tokens."""
    distance = torch.arange(kv_len, device="cpu") - torch.arange(num_tokens, device="cpu")[:, None]
    return (distance > next_tokens) | (distance < -pre_tokens)


def hidden_by(call: Call, mask: Mask, row: int, num_tokens: int, kv_len: int) -> Tensor | None:
    """[num_tokens, kv_len] bool, True where a mask hides keys from the tokens of one sequence; None: nowhere."""
    tensor, mode, pre_tokens, next_tokens = mask
    if tensor is None:
        return None
    if mode in (2, 3):
        return spread_compressed(call, tensor, num_tokens, kv_len, to_the_end=mode == 3)
    if mode == 4:
        # A band around the diagonal that ends in the lower right corner.
        shift = kv_len - num_tokens
        return band(num_tokens, kv_len, pre_tokens - shift, next_tokens + shift)
    values = call.read(tensor).bool()
    plane = values.reshape(-1, *values.shape[-2:])
    plane = plane[row if len(plane) > 1 else 0]
    call.require(
        plane.shape[0] >= num_tokens and plane.shape[1] >= kv_len,
        f"the mask {tuple(tensor.shape)} is smaller than {num_tokens} x {kv_len}",
    )
    hidden = plane[:num_tokens, :kv_len]
    return hidden if mode == 1 else hidden | band(num_tokens, kv_len, pre_tokens, next_tokens)


def pages(cache: Tensor, table: Tensor, kv_len: int) -> Tensor:
    """[kv_len, num_kv_heads, head_dim] out of a cache [num_blocks, block_size, num_kv_heads, head_dim]."""
    used = table[: -(-kv_len // cache.shape[1])]
    return cache[used].reshape(-1, *cache.shape[2:])[:kv_len]


def host_lengths(call: Call, name: str, lengths: Tensor) -> list[int]:
    """A tensor of lengths as numbers."""
    call.require(lengths.dtype == torch.int32, f"{name} must be int32, got {lengths.dtype}")
    call.require(lengths.dim() == 1, f"{name} must have one axis")
    values: list[int] = call.read(lengths).tolist()
    return values
