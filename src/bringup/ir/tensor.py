"""What a tensor looks like, by value: it outlives the graph it was read from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bringup.errors import PassSkipException
from bringup.ir.symbolic import Dim, DimLike, as_dim, same_size


@dataclass(frozen=True, init=False, eq=False)
class Shape:
    """The sizes of a tensor: numbers, or `SymbolicDim`s.

    Two shapes are compared as their sizes are: an answer that depends on a size is none, and raises
    `PassSkipException`. `same_as` asks whether they are known to be equal.

    Attributes:
        dims: the sizes, outermost first.
    """

    dims: tuple[Dim, ...]

    def __init__(self, dims: Sequence[DimLike]) -> None:
        object.__setattr__(self, "dims", tuple([as_dim(dim) for dim in dims]))

    @property
    def rank(self) -> int:
        """Return the number of dimensions."""
        return len(self.dims)

    @property
    def is_static(self) -> bool:
        """Return whether every size is a number."""
        return all(isinstance(dim, int) for dim in self.dims)

    @property
    def numel(self) -> int:
        """Return the number of elements; `ValueError` when a size is symbolic."""
        numbers = [dim for dim in self.dims if isinstance(dim, int)]
        if len(numbers) != len(self.dims):
            raise ValueError(
                f"the shape {self} has symbolic sizes: its number of elements is not a number"
            )
        return math.prod(numbers)

    def get_shape_size(self) -> int:
        """Return the number of elements as GE counts: 0 of a scalar, -1 when a size is symbolic."""
        if not self.is_static:
            return -1
        return self.numel if self.dims else 0

    def is_unknown_shape(self) -> bool:
        """Return whether a size is symbolic."""
        return not self.is_static

    def same_as(self, other: Shape) -> bool:
        """Return whether it and `other` are known to be equal, whatever the sizes; never raises."""
        return self.rank == other.rank and all(map(same_size, self.dims, other.dims))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shape):
            return NotImplemented
        if self.rank != other.rank:
            return False
        undecided: PassSkipException | None = None
        for left, right in zip(self.dims, other.dims, strict=True):
            try:
                if left != right:
                    return False
            except PassSkipException as error:
                undecided = error
        if undecided is not None:
            raise undecided
        return True

    def __hash__(self) -> int:
        return hash(self.dims)

    def __len__(self) -> int:
        return len(self.dims)

    def __iter__(self) -> Iterator[Dim]:
        return iter(self.dims)

    def __getitem__(self, index: int) -> Dim:
        return self.dims[index]

    def __str__(self) -> str:
        return f"[{', '.join(str(dim) for dim in self.dims)}]"


@dataclass(frozen=True, eq=False)
class TensorDesc:
    """Shape, dtype (`"float32"`), strides in elements, device (`"cpu"`, `"npu:0"`) of a tensor.

    Two are equal when they say the same, symbolic sizes by their text.

    Attributes:
        shape: the sizes.
        dtype: of the elements.
        strides: in elements; empty where they are not known.
        device: where it lies.
    """

    shape: Shape
    dtype: str
    strides: tuple[Dim, ...] = ()
    device: str = "cpu"

    @property
    def data_type(self) -> str:
        """Return the same as `dtype`, as GE calls it."""
        return self.dtype

    def get_shape(self) -> Shape:
        """Return the same as `shape`, as GE calls it."""
        return self.shape

    def get_data_type(self) -> str:
        """Return the same as `dtype`, as GE calls it."""
        return self.dtype

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorDesc):
            return NotImplemented
        return (
            (self.dtype, self.device) == (other.dtype, other.device)
            and self.shape.same_as(other.shape)
            and len(self.strides) == len(other.strides)
            and all(map(same_size, self.strides, other.strides))
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.strides, self.device))

    def __str__(self) -> str:
        return f"{self.dtype}{self.shape}"


@dataclass(frozen=True)
class ConstantData:
    """What a constant holds, by value: `data` are the elements in row-major order, no gaps.

    Attributes:
        dtype: of the elements, e.g. `"float32"`.
        shape: the sizes.
        data: the elements.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview
