"""Rotary embeddings: three ops with three sets of limits, one of which keeps the tables of its first call."""

from __future__ import annotations

import torch
from torch import Tensor

from text_generation_npu_emulator.launch import Call
from text_generation_npu_emulator.operators import kernel


def _rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def _rotate_interleaved(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, mode: str) -> Tensor:
    wide = x.float()
    other = _rotate_half(wide) if mode == "half" else _rotate_interleaved(wide)
    return (wide * cos.float() + other * sin.float()).to(x.dtype)


def _check_range(call: Call, *tables: Tensor) -> None:
    for table in tables:
        call.require(float(call.read(table).abs().amax()) <= 1, "cos and sin must lie within [-1, 1]")


@kernel("npu_rotary_mul")
def rotary_mul(call: Call, input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half") -> Tensor:
    """x * cos + rotate(x) * sin, a new tensor."""
    shape = tuple(input.shape)
    tables = tuple(r1.shape)
    call.require(r1.shape == r2.shape, f"cos {tables} and sin {tuple(r2.shape)} must have one shape")
    call.require(r1.dtype == r2.dtype == input.dtype, f"dtypes differ: {input.dtype}, {r1.dtype}, {r2.dtype}")
    call.require(tables[-1] == shape[-1], f"cos and sin must have the head size {shape[-1]}, got {tables[-1]}")
    if call.soc.only_saturates:
        call.require(rotary_mode == "half", f"only rotary_mode 'half', got {rotary_mode!r}")
        call.require(len(shape) == 4 and len(tables) == 4, f"x and tables must have four axes, got {shape}, {tables}")
        call.require(shape[-1] == 128, f"the head size must be 128, got {shape[-1]}")
        call.require(shape[0] <= 1000, f"at most 1000 in the batch axis, got {shape[0]}")
        heads = 2 if tables[1] != 1 or (tables[0] != 1 and shape[1] != 1) else 1
        others = [size for axis, size in enumerate(tables[:-1]) if size != 1]
        call.require(len(others) <= 1, f"cos and sin must have one long axis beside the last, got {tables}")
        call.require(shape[heads] <= 1000, f"at most 1000 heads, got {shape[heads]}")
        broadcast = 1
        for size, table in zip(shape[:-1], tables[:-1], strict=True):
            broadcast *= size if table == 1 else 1
        call.require(broadcast <= 1024, f"the axes that tables are spread over may have 1024 places, got {broadcast}")
    else:
        call.require(rotary_mode in ("half", "interleave"), f"unknown rotary_mode {rotary_mode!r}")
        call.require(len(shape) in (3, 4), f"x must have three or four axes, got {shape}")
        call.require(
            shape[-1] < 896 and shape[-1] % 2 == 0, f"the head size must be even and below 896, got {shape[-1]}"
        )
        if len(shape) == 4:
            sequence = next((axis for axis in (0, 1, 2) if tables[axis] != 1), 1)
            for axis in (0, 1, 2):
                if axis != sequence:
                    call.require(shape[axis] < 1000, f"batch and heads must be below 1000, got {shape}")
    for size, table in zip(shape, tables, strict=False):
        call.require(table in (1, size), f"cos and sin {tables} cannot be spread over x {shape}")
    _check_range(call, r1, r2)
    return _rotate(call.read(input), call.read(r1), call.read(r2), rotary_mode)


@kernel("npu_apply_rotary_pos_emb")
def apply_rotary_pos_emb(
    call: Call, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, layout: str, rotary_mode: str = "half"
) -> tuple[Tensor, Tensor]:
    """Rotates query and key in place, which the schema does not say, and returns them."""
    call.require(
        query.dtype == key.dtype == cos.dtype == sin.dtype,
        f"one dtype for all four, got {query.dtype}, {key.dtype}, {cos.dtype}, {sin.dtype}",
    )
    call.require(query.dtype in (torch.float16, torch.bfloat16, torch.float32), f"{query.dtype} is not supported")
    call.require(rotary_mode == "half" or call.soc.family != "310P", f"only rotary_mode 'half', got {rotary_mode!r}")
    call.require(rotary_mode in ("half", "interleave", "quarter"), f"unknown rotary_mode {rotary_mode!r}")
    call.require(rotary_mode != "quarter", "rotary_mode 'quarter' is not emulated")
    axes = {"BSND": (4, 2), "BSH": (4, 2), "SBND": (4, 2), "TND": (3, 1), "BNSD": (4, 1)}
    call.require(layout in axes, f"unknown layout {layout!r}")
    # "BSH" is the old name of BSND: the op was never given anything else.
    rank, heads = axes[layout]
    for name, tensor in (("query", query), ("key", key), ("cos", cos), ("sin", sin)):
        call.require(
            tensor.dim() == rank, f"{name} must have {rank} axes in layout {layout}, got {tuple(tensor.shape)}"
        )
        call.require(tensor.is_contiguous(), f"{name} must be contiguous")
        call.require(tensor.numel() > 0, f"{name} is empty")
    for name, tensor in (("cos", cos), ("sin", sin)):
        call.require(tensor.shape[heads] == 1, f"{name} must have one head, got {tuple(tensor.shape)}")
        expected = [1 if axis == heads else size for axis, size in enumerate(query.shape)]
        call.require(list(tensor.shape) == expected, f"{name} must be {tuple(expected)}, got {tuple(tensor.shape)}")
    call.require(query.shape[-1] in (64, 128), f"the head size must be 64 or 128, got {query.shape[-1]}")
    call.require(key.shape[-1] == query.shape[-1], "query and key must have one head size")
    c, s = call.read(cos), call.read(sin)
    rotated = [_rotate(call.read(x), c, s, rotary_mode) for x in (query, key)]
    call.store(query, rotated[0])
    call.store(key, rotated[1])
    return query, key


@kernel("_npu_rotary_embedding")
def rotary_embedding(
    call: Call,
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> None:
    """Rotates query and key in place with the table of the first call of the process, whatever it is given later."""
    call.require(positions.dtype in (torch.int32, torch.int64), f"positions must be integers, got {positions.dtype}")
    call.require(query.dtype == key.dtype == cos_sin_cache.dtype, "query, key and table must have one dtype")
    table = call.read(cos_sin_cache)
    if call.machine.rotary_table is None:
        call.machine.rotary_table = table.clone()
    kept = call.machine.rotary_table
    call.require_loud(
        kept.shape == table.shape and torch.equal(kept, table),
        "the op keeps the tables of its first call and ignores this one",
    )
    cos, sin = kept[call.read(positions).long()].float().chunk(2, -1)
    if is_neox_style:
        cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    else:
        cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
    for x in (query, key):
        heads = call.read(x).reshape(positions.numel(), -1, head_size)
        call.store(x, _rotate(heads, cos[:, None], sin[:, None], "half" if is_neox_style else "interleave"))
