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


def test_other_weights_become_contiguous_float32() -> None:
    packed = OPS.pack_weight(torch.randn(4, 6).bfloat16().T)
    assert packed.data.dtype == torch.float32
    assert packed.data.is_contiguous()
    assert packed.nbytes == 96


@pytest.mark.parametrize("block_size", [16, 32, 48, 128])
def test_multiples_of_16_are_block_sizes(block_size: int) -> None:
    OPS.check_block_size(block_size)


@pytest.mark.parametrize("block_size", [-16, 0, 1, 8, 24])
def test_other_block_sizes_are_refused_with_the_allowed_ones(block_size: int) -> None:
    with pytest.raises(ValueError, match=f"block size {block_size} is not supported on the CPU; use a multiple of 16"):
        OPS.check_block_size(block_size)
