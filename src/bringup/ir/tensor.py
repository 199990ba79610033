"""What a tensor looks like, by value: it outlives the graph it was read from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["ConstantData", "Dim", "Shape", "TensorDesc"]

Dim: TypeAlias = int | str
"""One dimension: a number, or the text of a symbolic expression such as `s0` or `2*s0`."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a tensor; a symbolic one is the text of its expression."""

    dims: tuple[Dim, ...]

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.dims)

    @property
    def is_static(self) -> bool:
        """Whether every size is a number."""
        return all(isinstance(dim, int) for dim in self.dims)

    @property
    def numel(self) -> int:
        """The number of elements; `ValueError` when a size is symbolic."""
        numbers = [dim for dim in self.dims if isinstance(dim, int)]
        if len(numbers) != len(self.dims):
            raise ValueError(
                f"the shape {self} has symbolic sizes: its number of elements is not a number"
            )
        return math.prod(numbers)

    def __len__(self) -> int:
        return len(self.dims)

    def __iter__(self) -> Iterator[Dim]:
        return iter(self.dims)

    def __getitem__(self, index: int) -> Dim:
        return self.dims[index]

    def __str__(self) -> str:
        return f"[{', '.join(str(dim) for dim in self.dims)}]"


@dataclass(frozen=True)
class TensorDesc:
    """Shape, dtype (`"float32"`), strides in elements, device (`"cpu"`, `"npu:0"`) of a tensor."""

    shape: Shape
    dtype: str
    strides: tuple[Dim, ...] = ()
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{self.dtype}{self.shape}"


@dataclass(frozen=True)
class ConstantData:
    """What a constant holds, by value: `data` are the elements in row-major order, no gaps."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview
