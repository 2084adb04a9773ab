"""FRACTAL_NZ as arithmetic: which weights may be tried, and how much storage they take."""

from __future__ import annotations

import pytest
import torch

from text_generation_kernels.npu.nz import ineligible, storage_elements


@pytest.mark.parametrize(
    ("rows", "columns", "itemsize", "expected"),
    [
        (40, 33, 2, 2304),  # seen on the real runtime, as the next two
        (40, 33, 4, 2304),
        (40, 33, 1, 3072),
        (4096, 4096, 2, 4096 * 4096),
        (1, 16, 2, 256),
        (16, 1, 2, 256),
        (32, 64, 1, 2048),
    ],
)
def test_storage_is_padded_to_blocks_of_16_rows_by_32_bytes(
    rows: int, columns: int, itemsize: int, expected: int
) -> None:
    assert storage_elements(rows, columns, itemsize) == expected


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((64, 128), torch.float16, None),
        ((64, 128), torch.bfloat16, None),
        ((64, 128), torch.int8, None),
        ((32001, 4096), torch.float16, "32001 % 16 != 0"),
        ((64, 24), torch.float16, "24 % 16 != 0"),
        ((64, 48), torch.int8, "48 % 32 != 0"),
        ((64, 128), torch.float32, "float32 is never in NZ"),
        ((2, 64, 128), torch.float16, "3 dimensions are not two"),
    ],
)
def test_a_weight_is_eligible_or_not_for_a_reason(
    shape: tuple[int, ...], dtype: torch.dtype, reason: str | None
) -> None:
    assert ineligible(shape, dtype) == reason
