"""FRACTAL_NZ as arithmetic on host tensors: shapes, sizes, packing and unpacking.

Knows nothing about storages or devices. A matrix (m, n) is cut into blocks of 16 rows and c0 columns; a block is
row-major inside, and blocks lie in column-major order: (n1, m1, 16, c0) for n1 = ceil(n / c0), m1 = ceil(m / 16).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ND = 2
FRACTAL_NZ = 29
ROWS = 16  # of a block


def columns_of_block(itemsize: int) -> int:
    """c0: 32 bytes' worth of elements, counting an element as at most two bytes."""
    return 32 // min(itemsize, 2)


def nz_shape(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Shape of the storage of a tensor (..., m, n) in NZ: (..., n1, m1, 16, c0)."""
    *leading, rows, columns = shape
    c0 = columns_of_block(itemsize)
    return (*leading, -(-columns // c0), -(-rows // ROWS), ROWS, c0)


def nz_numel(shape: Sequence[int], itemsize: int) -> int:
    """Elements that a tensor's storage holds in NZ, padding included."""
    return torch.Size(nz_shape(shape, itemsize)).numel()


def is_row_major_in_nz(shape: Sequence[int], itemsize: int) -> bool:
    """Whether NZ and row-major order are the same bytes: one block wide, and no padding."""
    return shape[-1] == columns_of_block(itemsize) and shape[-2] % ROWS == 0


def pack(matrix: Tensor) -> Tensor:
    """(..., m, n) to (..., n1, m1, 16, c0), padded with zeros, contiguous."""
    *leading, n1, m1, m0, n0 = nz_shape(matrix.shape, matrix.element_size())
    rows, columns = matrix.shape[-2:]
    padded = matrix.new_zeros((*leading, m1 * m0, n1 * n0))
    padded[..., :rows, :columns] = matrix
    return padded.reshape(*leading, m1, m0, n1, n0).movedim(-2, -4).contiguous()


def unpack(packed: Tensor, rows: int, columns: int) -> Tensor:
    """(..., n1, m1, 16, c0) to (..., m, n), contiguous."""
    *leading, n1, m1, m0, n0 = packed.shape
    matrix = packed.movedim(-4, -2).reshape(*leading, m1 * m0, n1 * n0)
    return matrix[..., :rows, :columns].contiguous()
