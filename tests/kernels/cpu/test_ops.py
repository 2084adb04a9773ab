"""What only the CPU's ops promise: layouts, dtypes, block sizes."""

from __future__ import annotations

import pytest
import torch

from text_generation_kernels.cpu.ops import CpuOps

OPS = CpuOps()


def test_a_weight_in_the_right_layout_is_not_copied() -> None:
    weight = torch.randn(6, 4)
    packed = OPS.pack_weight(weight)
    assert packed.data.data_ptr() == weight.data_ptr()
    assert (packed.layout, packed.nbytes) == ("nd", 96)


def test_a_transposed_weight_becomes_contiguous() -> None:
    packed = OPS.pack_weight(torch.randn(4, 6).T)
    assert packed.data.is_contiguous()
    assert packed.nbytes == 96


@pytest.mark.skipif("fbgemm" not in torch.backends.quantized.supported_engines, reason="this torch has no FBGEMM")
def test_weights_of_16_bits_are_kept_as_such() -> None:
    weight = torch.randn(40, 24, generator=torch.Generator().manual_seed(0)).bfloat16()
    packed = OPS.pack_weight(weight)
    assert (packed.layout, packed.nbytes) == ("fbgemm_f16", 2 * 40 * 24)
    torch.testing.assert_close(OPS.linear(torch.eye(24), packed), weight.float().T, atol=1e-7, rtol=0)


def test_a_weight_that_float16_cannot_hold_becomes_float32() -> None:
    weight = torch.full((4, 6), 1e6).bfloat16()
    packed = OPS.pack_weight(weight)
    assert packed.layout == "nd"
    assert torch.equal(OPS.linear(torch.eye(6), packed), weight.float().T)


@pytest.mark.parametrize("block_size", [16, 32, 48, 128])
def test_multiples_of_16_are_block_sizes(block_size: int) -> None:
    OPS.check_block_size(block_size)


@pytest.mark.parametrize("block_size", [-16, 0, 1, 8, 24])
def test_other_block_sizes_are_refused_with_the_allowed_ones(block_size: int) -> None:
    with pytest.raises(ValueError, match=f"block size {block_size} is not supported on the CPU; use a multiple of 16"):
        OPS.check_block_size(block_size)
