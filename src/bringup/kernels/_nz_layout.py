"""The nz layout, blocks of 16 x 16, row-major inside, column by column, in torch operators."""

from __future__ import annotations

import torch
from torch.nn import functional

BLOCK = 16  # rows and columns of a block: kFractal in gemm/operand.h


def to_nz(matrix: torch.Tensor) -> torch.Tensor:
    """Return a matrix [..., rows, columns] in the nz layout: [..., ceil(columns / 16), ceil(rows /
    16), 16, 16], contiguous; rows and columns are filled up with zeros. Raises `ValueError` for
    less than two dimensions.
    """
    if matrix.dim() < 2:
        raise ValueError(
            f"to_nz: expected a matrix [..., rows, columns], got shape {list(matrix.shape)}"
        )
    rows, columns = matrix.shape[-2:]
    padded = functional.pad(matrix, (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.unflatten(-1, (-1, BLOCK)).unflatten(-3, (-1, BLOCK))
    return blocks.movedim(-2, -4).contiguous()


def from_nz(blocks: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return the matrix [..., rows, columns] in the nz layout, without what `to_nz` filled up.

    Args:
        blocks: [..., ceil(columns / 16), ceil(rows / 16), 16, 16].
        rows: of the matrix.
        columns: of the matrix.

    Raises:
        ValueError: the blocks are not those of such a matrix.
    """
    expected = [-(-columns // BLOCK), -(-rows // BLOCK), BLOCK, BLOCK]
    if list(blocks.shape[-4:]) != expected:
        raise ValueError(
            f"from_nz: a matrix of {rows} rows and {columns} columns has nz shape [..., "
            f"{', '.join(map(str, expected))}], got {list(blocks.shape)}"
        )
    padded = blocks.movedim(-4, -2).flatten(-2).flatten(-3, -2)
    return padded[..., :rows, :columns].contiguous()
