"""What store_kv leaves in a cache, to the last bit: runs of slots, lone ones, any order, any numbers.

The cache is read by the layout that abi.h and formats.h describe, and compared with torch's own rounding.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.implementations import native_device
from text_generation_kernels.interface import KVCache

BLOCK_SIZE, NUM_BLOCKS = 32, 5
NUM_SLOTS = BLOCK_SIZE * NUM_BLOCKS
NUM_KV_HEADS = 3
INSTRUCTION_SETS = ("avx512", "avx2", "neon")

WHOLE_PIECES = tuple(range(32, 96))
SLOTS = {
    "one": (37,),
    "last": (NUM_SLOTS - 1,),
    "a_piece": tuple(range(16, 32)),
    "a_piece_but_one": tuple(range(16, 31)),
    "from_one_into_a_piece": tuple(range(17, 33)),
    "across_pieces_and_blocks": tuple(range(5, 150)),
    "two_runs": (*range(64, 96), *range(0, 32)),
    "none_between": (*WHOLE_PIECES[:20], -1, *WHOLE_PIECES[20:41], -1, -1, *WHOLE_PIECES[41:]),
    "none": (-1,) * 20,
    "descending": WHOLE_PIECES[::-1],
    "swapped": (*range(16, 24), 25, 24, *range(26, 32)),
    "one_of_each_block": tuple(range(7, NUM_SLOTS, BLOCK_SIZE)),
    "neighbours_of_two_threads": (*range(0, 30, 2), *range(1, 31, 2)),
}


def odd_numbers(num_tokens: int, head_dim: int) -> Tensor:
    """[num_tokens, 2, NUM_KV_HEADS, head_dim]: any bits at all, among them ties, NaN, infinities and denormals."""
    shape = (num_tokens, 2, NUM_KV_HEADS, head_dim)
    bits = torch.randint(-(2**31), 2**31, shape, generator=torch.Generator().manual_seed(num_tokens))
    special = (
        0,
        -(2**31),
        0x7F800000,
        0xFF800000 - 2**32,
        0x7FC00000,
        0x7F800001,
        0x7FFFFFFF,
        -1,
        1,
        0x007FFFFF,
        0x7F7FFFFF,
    )
    flat = bits.view(-1)
    flat[: len(special) * 5 : 5] = torch.tensor(special)[: len(flat[: len(special) * 5 : 5])]
    flat[3::7] = flat[3::7] & ~0xFFFF | 0x8000  # halfway between two bfloat16
    return bits.to(torch.int32).view(torch.float32)


def contents(cache: Tensor, head_dim: int, tokens_are_columns: bool) -> Tensor:
    """[NUM_SLOTS, NUM_KV_HEADS, padded head_dim] of a cache of panels."""
    padded = -(-head_dim // 16) * 16
    unit = 2 if cache.dtype is torch.bfloat16 else 1
    if tokens_are_columns:
        panels = cache.view(NUM_BLOCKS, NUM_KV_HEADS, BLOCK_SIZE // 16, padded // unit, 16, unit)
        tokens = panels.permute(0, 2, 4, 1, 3, 5)  # [blocks, pieces, tokens, heads, dimensions, of a unit]
    else:
        panels = cache.view(NUM_BLOCKS, NUM_KV_HEADS, BLOCK_SIZE // 16, padded // 16, 16 // unit, 16, unit)
        tokens = panels.permute(0, 2, 4, 6, 1, 3, 5)
    return tokens.reshape(NUM_SLOTS, NUM_KV_HEADS, padded)


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    assert torch.equal(actual.isnan(), expected.isnan())
    bits = torch.int16 if actual.dtype is torch.bfloat16 else torch.int32
    assert torch.equal(actual.view(bits)[~actual.isnan()], expected.view(bits)[~expected.isnan()])


def check(instruction_set: str, num_threads: int, kv_dtype: torch.dtype, slots: tuple[int, ...], head_dim: int) -> None:
    ops = native_device(instruction_set, num_threads, kv_dtype).ops
    cache: KVCache = ops.new_kv_cache(NUM_BLOCKS, BLOCK_SIZE, NUM_KV_HEADS, head_dim)
    every = torch.arange(NUM_SLOTS, dtype=torch.int32)
    before, given_kv = odd_numbers(NUM_SLOTS, head_dim), odd_numbers(len(slots), head_dim)
    ops.store_kv(before[:, 0], before[:, 1], cache, every)
    ops.store_kv(given_kv[:, 0], given_kv[:, 1], cache, torch.tensor(slots, dtype=torch.int32))
    for index, stored in enumerate((cache.k, cache.v)):
        expected = before[:, index].to(kv_dtype)
        for row, slot in enumerate(slots):
            if slot >= 0:
                expected[slot] = given_kv[row, index].to(kv_dtype)
        actual = contents(stored, head_dim, tokens_are_columns=index == 0)
        assert_same_bits(actual[..., :head_dim], expected)
        assert not actual[..., head_dim:].any()


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS.keys())
@pytest.mark.parametrize("head_dim", [64, 16, 80, 33, 1])
def test_each_token_stands_at_its_slot_and_the_others_as_they_were(
    instruction_set: str, num_threads: int, kv_dtype: torch.dtype, slots: tuple[int, ...], head_dim: int
) -> None:
    check(instruction_set, num_threads, kv_dtype, slots, head_dim)


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, ...]:
    """Runs in pieces of their own, in any order; -1 after some."""
    slots: list[int] = []
    for piece in draw(st.permutations(range(NUM_SLOTS // 16))):
        length = draw(st.sampled_from((0, 1, 2, 15, 16, 16)))
        first = piece * 16 + draw(st.integers(0, 16 - length))
        slots += [*range(first, first + length), *[-1] * draw(st.integers(0, 1))]
    return tuple(slots)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(slots=runs(), num_threads=st.integers(1, 3))
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_runs_of_any_lengths_in_any_order(instruction_set: str, num_threads: int, slots: tuple[int, ...]) -> None:
    check(instruction_set, num_threads, torch.bfloat16, slots, 64)
