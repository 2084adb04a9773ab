"""Packed weights: what each checkpoint's dtype becomes, int8 against the numbers it stands for, and their memory."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.kernels.implementations import library_or_skip
from text_generation_kernels.native.ops import NativeCpuOps
from text_generation_kernels.native.weights import Panels, WeightMemory, quantize
from text_generation_kernels.reference import ReferenceOps

REFERENCE = ReferenceOps()


def make_ops(instruction_set: str | None = None, group_size: int | None = None, num_threads: int = 1) -> NativeCpuOps:
    library = library_or_skip()
    return NativeCpuOps(
        library, num_threads, instruction_set or library.instruction_sets[0], int8_group_size=group_size
    )


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("dtype", "layout", "nbytes"),
    [
        (torch.float32, "panels_f32", 48 * 33 * 4),
        (torch.bfloat16, "panels_bf16", 48 * 34 * 2),
        (torch.float16, "panels_f16", 48 * 33 * 2),
        (torch.float64, "panels_f32", 48 * 33 * 4),
    ],
)
def test_a_checkpoint_keeps_its_format(dtype: torch.dtype, layout: str, nbytes: int) -> None:
    packed = make_ops().pack_weight(randn(40, 33).to(dtype))
    assert (packed.layout, packed.nbytes) == (layout, nbytes)


@pytest.mark.parametrize("group_size", [16, 64, 576])
@pytest.mark.parametrize("num_rows", [1, 5, 7, 13, 40])
@pytest.mark.parametrize(("out_features", "in_features"), [(96, 576), (33, 129), (1, 16), (2100, 64)])
def test_int8_is_the_product_with_the_quantized_weight(
    num_rows: int, out_features: int, in_features: int, group_size: int
) -> None:
    weight = randn(out_features, in_features, seed=1)
    numbers, scales = quantize(weight, group_size)
    meant = numbers.float() * scales.repeat_interleave(group_size, dim=1)[:, :in_features]
    x = randn(num_rows, in_features)
    expected = REFERENCE.linear(x, REFERENCE.pack_weight(meant))
    for instruction_set in library_or_skip().instruction_sets:
        ops = make_ops(instruction_set, group_size)
        packed = ops.pack_weight(weight)
        actual = ops.linear(x, packed)
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-5)
        alone = ops.linear(x[-1:], packed)
        assert torch.equal(actual[-1:], alone)
        assert torch.equal(make_ops(instruction_set, group_size, 2).linear(x, packed), actual)


def test_quantized_weights_are_within_half_a_step() -> None:
    weight = randn(20, 130)
    numbers, scales = quantize(weight, 64)
    assert scales.shape == (20, 3)
    meant = numbers.float() * scales.repeat_interleave(64, dim=1)[:, :130]
    assert bool(((meant - weight).abs() <= scales.repeat_interleave(64, dim=1)[:, :130] * 0.5001).all())
    assert int(numbers.abs().max()) == 127


def test_zeros_stay_zeros() -> None:
    ops = make_ops(group_size=64)
    assert not ops.linear(randn(2, 64), ops.pack_weight(torch.zeros(16, 64))).any()


def test_int8_halves_a_16_bit_weight() -> None:
    weight = randn(960, 576).bfloat16()
    assert make_ops(group_size=64).pack_weight(weight).nbytes / make_ops().pack_weight(weight).nbytes == 0.5 * 17 / 16


def test_an_int8_weight_is_no_embedding_table() -> None:
    ops = make_ops(group_size=64)
    packed = ops.pack_weight(randn(16, 64))
    assert not ops.can_embed(packed)
    with pytest.raises(ValueError, match="embedding: an int8 weight is no table"):
        ops.embedding(torch.tensor([0]), packed)


def test_memory_is_aligned_and_not_handed_out_twice() -> None:
    memory = WeightMemory()
    taken = [memory.take(size) for size in (1, 100, 64, 40 << 20, 5)]
    spans = sorted((piece.data_ptr(), piece.data_ptr() + len(piece)) for piece in taken)
    assert [len(piece) for piece in taken] == [1, 100, 64, 40 << 20, 5]
    assert all(piece.data_ptr() % 64 == 0 for piece in taken)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_a_packed_weight_shares_no_memory_with_its_source() -> None:
    ops, weight = make_ops(), randn(16, 32)
    packed = ops.pack_weight(weight)
    before = ops.linear(torch.eye(32), packed)
    weight.zero_()
    assert torch.equal(ops.linear(torch.eye(32), packed), before)
    assert isinstance(packed.data, Panels)
