"""Writes into a KV cache, and reads of its pages.

Slots that do not exist are refused by all of them. The chip checks nothing: it writes over somebody else's memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from text_generation_npu_emulator.formats import columns_of_block
from text_generation_npu_emulator.launch import Call
from text_generation_npu_emulator.operators import kernel

_DTYPES_LEGACY = (torch.float16, torch.float32, torch.bool)
_DTYPES = (*_DTYPES_LEGACY, torch.bfloat16, torch.int64, torch.int8)


def _slots(call: Call, slots: Tensor, limit: int, unique: bool = False) -> Tensor:
    values = call.read(slots).long().reshape(-1)
    call.require(
        bool(((values >= 0) & (values < limit)).all()),
        f"slots must lie within 0..{limit - 1}, got {int(values.min())}..{int(values.max())}; "
        "the chip would write over other memory",
    )
    if unique:
        call.require(len(values.unique()) == len(values), "slots must not repeat")
    return values


def _write_nd(call: Call, cache: Tensor, slot_indices: Tensor, values: Tensor, unique: bool = False) -> None:
    """cache: [num_blocks, block_size, num_heads, head_dim]; values: [num_tokens, num_heads, head_dim]."""
    call.require(
        cache.dim() == 4 and tuple(cache.shape[2:]) == tuple(values.shape[1:]),
        f"a cache must be (blocks, block size, {values.shape[1]}, {values.shape[2]}), got {tuple(cache.shape)}",
    )
    num_blocks, block_size = cache.shape[:2]
    slots = _slots(call, slot_indices, num_blocks * block_size, unique)
    rows = call.write(cache).view(num_blocks * block_size, -1)
    rows[slots] = call.result(call.read(values)).reshape(len(slots), -1)


def _write_nz(call: Call, cache: Tensor, slot_indices: Tensor, values: Tensor, unique: bool = False) -> None:
    """cache: [num_blocks, num_heads * head_dim / c0, block_size, c0]; values as above."""
    c0 = columns_of_block(cache.element_size())
    width = values.shape[1] * values.shape[2]
    call.require(
        cache.dim() == 4 and cache.shape[3] == c0 and cache.shape[1] * c0 == width and cache.shape[2] % 16 == 0,
        f"a cache in FRACTAL_NZ must be (blocks, {width // c0}, block size, {c0}), got {tuple(cache.shape)}",
    )
    num_blocks, columns, block_size, _ = cache.shape
    slots = _slots(call, slot_indices, num_blocks * block_size, unique)
    target = call.write(cache)
    rows = call.result(call.read(values)).reshape(len(slots), columns, c0)
    target[slots // block_size, :, slots % block_size] = rows


@kernel("_npu_reshape_and_cache", nz=("key_cache", "value_cache"))
def reshape_and_cache(
    call: Call, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_indices: Tensor
) -> None:
    """Writes NZ only if both caches say that they are NZ."""
    call.require(slot_indices.numel() > 0, "slot_indices is empty (setup failed)")
    call.require(slot_indices.dtype == torch.int32, f"slot_indices must be int32, got {slot_indices.dtype}")
    call.require(key.dim() == value.dim() == 3, "key and value must be (tokens, heads, head size)")
    call.require(len(key) == len(value) == slot_indices.numel(), "one slot for each token of key and value")
    for name, tensor in (("key", key), ("value", value), ("key_cache", key_cache), ("value_cache", value_cache)):
        call.require(tensor.is_contiguous(), f"{name} must be contiguous")
        call.require(tensor.dtype == key.dtype, f"{name} must have key's dtype {key.dtype}, got {tensor.dtype}")
    formats = (call.is_nz(key_cache), call.is_nz(value_cache))
    call.require_loud(formats[0] == formats[1], "one cache is in FRACTAL_NZ and one is not: both are written as ND")
    if call.soc.family == "310P":
        call.require_loud(all(formats), "caches must be in FRACTAL_NZ for the attention of this chip to read them")
    for cache, values in ((key_cache, key), (value_cache, value)):
        if all(formats):
            _write_nz(call, cache, slot_indices, values)
        elif call.is_nz(cache):
            _write_as_nd(call, cache, slot_indices, values)
        else:
            _write_nd(call, cache, slot_indices, values)


def _write_as_nd(call: Call, cache: Tensor, slot_indices: Tensor, values: Tensor) -> None:
    """What the chip makes of a cache in FRACTAL_NZ beside one in ND."""
    width = values.shape[1] * values.shape[2]
    rows = call.write(cache).view(-1, width)
    rows[_slots(call, slot_indices, len(rows))] = call.result(call.read(values)).reshape(-1, width)


@kernel("npu_scatter_pa_kv_cache", nz=("key_cache", "value_cache"))
def scatter_pa_kv_cache(
    call: Call,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """`cache_mode`: "Norm": (blocks, block size, heads, head size); "PA_NZ": (blocks, columns, block size, c0)."""
    call.require(
        slot_mapping.dtype in (torch.int32, torch.int64), f"slot_mapping must be integer, got {slot_mapping.dtype}"
    )
    call.require(slot_mapping.dim() == 1, "slot_mapping must have one axis")
    call.require(cache_mode in ("Norm", "PA_NZ"), f"unknown cache_mode {cache_mode!r}")
    call.require(len(key) == len(value) == len(slot_mapping), "one slot for each token of key and value")
    for cache, values in ((key_cache, key), (value_cache, value)):
        call.require(cache.is_contiguous() and values.is_contiguous(), "tensors must be contiguous")
        call.require(cache.dtype == values.dtype, f"cache and values must have one dtype, got {cache.dtype}")
        if cache_mode == "PA_NZ":
            _write_nz(call, cache, slot_mapping, values, unique=True)
        else:
            call.require(not call.is_nz(cache), "cache_mode 'Norm' with a cache in FRACTAL_NZ")
            _write_nd(call, cache, slot_mapping, values, unique=True)


def _scatter_nd(call: Call, target: Tensor, indices: Tensor, updates: Tensor, into: Tensor) -> None:
    allowed = _DTYPES_LEGACY if call.soc.only_saturates else _DTYPES
    call.require(target.dtype in allowed, f"{target.dtype} is not supported")
    call.require(updates.dtype == target.dtype, f"updates must be {target.dtype}, got {updates.dtype}")
    call.require(indices.dtype in (torch.int32, torch.int64), f"indices must be integer, got {indices.dtype}")
    depth = indices.shape[-1]
    expected = (*indices.shape[:-1], *target.shape[depth:])
    call.require(tuple(updates.shape) == expected, f"updates must be {expected}, got {tuple(updates.shape)}")
    if updates.numel() == 0:
        return
    index = call.read(indices).long()
    limits = torch.tensor(target.shape[:depth], device="cpu")
    call.require(
        bool(((index >= 0) & (index < limits)).all()),
        f"indices must lie within {tuple(target.shape[:depth])}; the chip would write over other memory",
    )
    into[index.unbind(-1)] = call.result(call.read(updates))


@kernel("npu_scatter_nd_update_")
def scatter_nd_update_(call: Call, input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    _scatter_nd(call, input, indices, updates, call.write(input))
    return input


@kernel("npu_scatter_nd_update")
def scatter_nd_update(call: Call, input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    changed = call.read(input).clone()
    _scatter_nd(call, input, indices, updates, changed)
    return changed
