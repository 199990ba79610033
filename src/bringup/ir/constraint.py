"""What a pattern may ask of a tensor: dtype, rank, shape with symbolic sizes, device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from types import EllipsisType
from typing import TypeAlias

DimPattern: TypeAlias = "int | str | EllipsisType | None"
"""A size: a number, a name (the same name is the same size), None for any, `...` for any number of
sizes."""


@dataclass(frozen=True)
class TensorConstraint:
    """What a tensor must look like; what is left empty may be anything.

    Attributes:
        dtypes: one of these, e.g. `("float16", "bfloat16")`.
        ranks: one of these numbers of dimensions.
        shape: the sizes; at most one `...`.
        devices: one of these; `"npu"` takes every device of that type, `"npu:0"` that one.
    """

    dtypes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    shape: tuple[DimPattern, ...] | None = None
    devices: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        dtype: object = None,
        rank: object = None,
        shape: Iterable[DimPattern] | None = None,
        device: object = None,
    ) -> TensorConstraint:
        """Return the constraint of these facts: `shape`, dtype, rank, device; each may be choices.
        Raises `TypeError` or `ValueError` that names the fact when one cannot be meant.
        """
        ranks = _choices(rank)
        for item in ranks:
            if isinstance(item, bool) or not isinstance(item, int) or item < 0:
                raise TypeError(f"where: rank must be a number from 0 up, got {item!r}")
        return cls(
            tuple(_dtype_name(item) for item in _choices(dtype)),
            tuple(item for item in ranks if isinstance(item, int)),
            None if shape is None else _sizes(shape),
            tuple(str(item) for item in _choices(device)),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of sizes in the shape."""
        return tuple(dim for dim in self.shape or () if isinstance(dim, str))

    def joined(self, other: TensorConstraint) -> TensorConstraint:
        """Return both, with `other`; `ValueError` when they say two things about one fact."""
        facts = {}
        for field in dataclasses.fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if mine and theirs and mine != theirs:
                raise ValueError(f"where: {field.name} was {mine} already, got {theirs}")
            facts[field.name] = theirs if mine in ((), None) else mine
        return TensorConstraint(**facts)


def _choices(given: object) -> tuple[object, ...]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, (tuple, list, set, frozenset)) else (given,)


def _dtype_name(given: object) -> str:
    name = str(given).removeprefix("torch.")
    if not name.isidentifier():
        raise TypeError(f'where: dtype must be a name such as "float32", got {given!r}')
    return name


def _sizes(given: Iterable[DimPattern]) -> tuple[DimPattern, ...]:
    if isinstance(given, str):
        raise TypeError(f"where: shape must be a tuple of sizes, got the string {given!r}")
    sizes = tuple(given)
    for size in sizes:
        named = isinstance(size, str) and size.isidentifier()
        numbered = isinstance(size, int) and not isinstance(size, bool) and size >= 0
        if not (named or numbered or size is None or size is ...):
            raise TypeError(
                "where: a size must be a number from 0 up, a name, None or `...`, "
                f"got {size!r} in shape={sizes}"
            )
    if sizes.count(...) > 1:
        raise ValueError(f"where: a shape has at most one `...`, got {sizes}")
    return sizes
