"""Products of weights with float32 rows on every instruction set: nothing of a row is lost, no row sees another.

Where keys and values are kept in bfloat16, AMX takes two parts of a number, not three: what is lost then has a bound.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.kernels.implementations import library_or_skip
from text_generation_kernels.native.ops import NativeCpuOps

EXACT = ("amx", "avx512", "avx2", "neon")
TWO_PARTS = "amx, two parts"
SETS = (*EXACT, TWO_PARTS)
LEFT_OUT = 2.0**-17  # of a number, by two parts: at most
# The largest number that bfloat16 does not take for infinity, and the next one.
LARGEST, TOO_LARGE = torch.tensor([0x7F7F7FFF, 0x7F7F8000], dtype=torch.int32).view(torch.float32).tolist()
SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


def make_ops(kind: str, num_threads: int = 1, group_size: int | None = None) -> NativeCpuOps:
    """Ops of an instruction set, or those named TWO_PARTS."""
    library, instruction_set = library_or_skip(), kind.partition(",")[0]
    if instruction_set not in library.instruction_sets:
        pytest.skip(f"this processor or this library has no {instruction_set}")
    kv_dtype = torch.bfloat16 if kind == TWO_PARTS else torch.float32
    return NativeCpuOps(library, num_threads, instruction_set, kv_dtype, group_size)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def product(ops: NativeCpuOps, x: Tensor, weight: Tensor) -> Tensor:
    return ops.linear(x, ops.pack_weight(weight))


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("group_size", [None, 64], ids=["bf16", "int8"])
@pytest.mark.parametrize(("out_features", "in_features"), [(200, 2500), (960, 576), (33, 129), (1, 16)])
def test_a_row_is_the_same_to_the_last_bit_in_any_batch_on_any_number_of_threads(
    instruction_set: str, group_size: int | None, out_features: int, in_features: int
) -> None:
    x, bias = randn(300, in_features), randn(out_features, seed=2)
    weight = randn(out_features, in_features, seed=1).bfloat16()
    alone = make_ops(instruction_set, 1, group_size)
    packed = alone.pack_weight(weight)
    expected = torch.cat([alone.linear(row[None], packed, bias) for row in x])
    for num_threads in (1, 2, 3, 5):
        ops = make_ops(instruction_set, num_threads, group_size)
        packed = ops.pack_weight(weight)
        for num_rows in (1, 2, 15, 16, 17, 31, 33, 100, 144, 300):
            assert torch.equal(ops.linear(x[-num_rows:], packed, bias), expected[-num_rows:]), (num_threads, num_rows)


@pytest.mark.parametrize("instruction_set", EXACT)
def test_every_bit_of_a_row_counts(instruction_set: str) -> None:
    """The product with 1 is the number itself, down to those whose last bits no normal number holds."""
    powers = torch.arange(-102, 128).float()
    x = torch.cat([(1 + torch.rand(len(powers), generator=torch.Generator().manual_seed(0))) * 2**powers, -powers])
    x = torch.cat([x, torch.tensor([LARGEST, -LARGEST, 0.0, -0.0, 1 + 2**-23, 1 - 2**-24, 2 - 2**-23])])
    one = torch.eye(len(x)).bfloat16()
    assert torch.equal(product(make_ops(instruction_set), x[None], one)[0], x)


def test_two_parts_hold_17_bits_of_a_number_and_round_the_rest() -> None:
    generator = torch.Generator().manual_seed(0)
    x = (1 + torch.rand(400, generator=generator)) * 2.0 ** torch.linspace(-100, 127, 400)
    x = torch.cat([x, -x, torch.tensor([LARGEST])])
    identity = torch.eye(len(x)).bfloat16()
    actual = product(make_ops(TWO_PARTS), x[None], identity)[0]
    error = (actual.double() - x.double()).abs() / x.double().abs()
    assert error.max() <= LEFT_OUT
    assert bool((actual > x).any())
    assert bool((actual < x).any())
    mantissa, exponent = x.frexp()
    short = torch.ldexp((mantissa * 2**17).trunc() / 2**17, exponent)
    assert torch.equal(product(make_ops(TWO_PARTS), short[None], identity)[0], short)


@pytest.mark.parametrize("kind", ["amx", TWO_PARTS])
def test_what_bfloat16_takes_for_infinity_is_infinite_in_tile_products(kind: str) -> None:
    x = torch.tensor([[TOO_LARGE, -TOO_LARGE, torch.finfo(torch.float32).max]])
    actual = product(make_ops(kind), x.T.contiguous(), torch.ones(1, 1).bfloat16())
    assert actual[:, 0].tolist() == [torch.inf, -torch.inf, torch.inf]


@pytest.mark.parametrize("instruction_set", SETS)
def test_what_is_lost_of_the_smallest_numbers_is_smaller_than_any_normal_one(instruction_set: str) -> None:
    x = randn(1, 200) * 2.0 ** torch.linspace(-148, -100, 200)
    actual = product(make_ops(instruction_set), x, torch.eye(200).bfloat16())
    rounded_off = x.abs() * LEFT_OUT if instruction_set == TWO_PARTS else 0
    assert bool(((actual - x).abs() <= rounded_off + 2 * SMALLEST_NORMAL).all())


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("group_size", [None, 64], ids=["bf16", "int8"])
def test_what_is_not_finite_stays_so_in_its_row_alone(instruction_set: str, group_size: int | None) -> None:
    ops = make_ops(instruction_set, group_size=group_size)
    packed = ops.pack_weight((randn(40, 77).abs() + 0.1).bfloat16())
    quiet, low_bits = torch.tensor([0x7FC00000, 0x7F800001], dtype=torch.int32).view(torch.float32)
    for place in (0, 1, 31, 32, 76):
        x = randn(6, 77)
        finite = ops.linear(x, packed)
        for row, value in enumerate((torch.inf, -torch.inf, quiet, low_bits)):
            x[row + 1, place] = value
        actual = ops.linear(x, packed)
        assert torch.equal(actual[[0, 5]], finite[[0, 5]])
        assert bool((actual[1] == torch.inf).all())
        assert bool((actual[2] == -torch.inf).all())
        assert bool(actual[3:5].isnan().all())


def cancelling(num_rows: int, size: int) -> Tensor:
    """Rows whose second half takes the first away but for a millionth, when weights repeat themselves."""
    half = randn(num_rows, size // 2) * 100
    return torch.cat([half, -half * (1 + 1e-6 * randn(num_rows, size // 2, seed=3))], dim=1)


@pytest.mark.parametrize("instruction_set", EXACT)
@pytest.mark.parametrize("size", [64, 576, 4096])
@pytest.mark.parametrize("kind", ["random", "of many sizes", "cancelling"])
def test_sums_are_as_near_to_float64_as_those_of_float32_in_order(instruction_set: str, size: int, kind: str) -> None:
    """In order: each k after the other, as AVX-512 adds and as a plain loop would."""
    weight = randn(64, size // 2, seed=1).repeat(1, 2).bfloat16()
    x = {
        "random": randn(24, size),
        "of many sizes": randn(24, size) * 10 ** (4 * randn(24, size, seed=5)),
        "cancelling": cancelling(24, size),
    }[kind]
    exact = x.double() @ weight.double().T
    in_order = torch.zeros(24, 64)
    for k in range(size):
        in_order += x[:, k, None] * weight[:, k].float()
    unit = x.double().abs() @ weight.double().abs().T
    error = ((product(make_ops(instruction_set), x, weight).double() - exact).abs() / unit).square().mean().sqrt()
    expected = ((in_order.double() - exact).abs() / unit).square().mean().sqrt()
    assert error <= 1.1 * expected


@pytest.mark.parametrize("group_size", [None, 64], ids=["bf16", "int8"])
@pytest.mark.parametrize(("out_features", "in_features"), [(200, 2500), (960, 576), (33, 129), (1, 16)])
@pytest.mark.parametrize("spread", [0, 4])
def test_two_parts_leave_out_less_than_a_100000th_of_every_product(
    group_size: int | None, out_features: int, in_features: int, spread: float
) -> None:
    x = randn(40, in_features) * 10 ** (spread * randn(40, in_features, seed=5))
    ops = make_ops(TWO_PARTS, 1, group_size)
    packed = ops.pack_weight(randn(out_features, in_features, seed=1).bfloat16())
    weight = make_ops("amx", 1, group_size).linear(torch.eye(in_features), packed).double()  # what int8 has made of it
    products, unit = x.double() @ weight, x.double().abs() @ weight.abs()
    error = (ops.linear(x, packed).double() - products).abs() / unit
    assert error.max() <= LEFT_OUT
    assert error.square().mean().sqrt() <= LEFT_OUT / 2
