"""What a model's output holds, whatever nest it comes in, and how far two outputs are apart."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Leaf", "compared", "flat", "scale_of"]

_NUMBERS = (bool, int, float, complex)
_DEEPEST = 32


@dataclass(frozen=True)
class Leaf:
    """One value in an output.

    Attributes:
        path: how it is reached from the output: `.logits`, `[0]['hidden']`; "" for the output.
        value: a tensor (copied), a number, or anything else that is compared by `==`.
    """

    path: str
    value: Any

    @property
    def form(self) -> object:
        """What two leaves must have in common to be compared."""
        if isinstance(self.value, torch.Tensor):
            return self.path, tuple(self.value.shape), self.value.dtype
        kind = "number" if isinstance(self.value, _NUMBERS) else type(self.value).__name__
        return self.path, kind

    def describe(self) -> str:
        """The leaf in words: its kind, for tensors with dtype and shape."""
        if isinstance(self.value, torch.Tensor):
            dtype = str(self.value.dtype).removeprefix("torch.")
            return f"{dtype}{list(self.value.shape)}"
        return type(self.value).__name__


def flat(result: Any) -> list[Leaf]:
    """The leaves of a result, in order: of tuples (named ones too), lists, mappings, dataclasses
    and objects with attributes of their own, nested. Tensors are copied: a captured graph
    overwrites its own.
    """
    return [
        Leaf(path, value.detach().clone() if isinstance(value, torch.Tensor) else value)
        for path, value in _leaves(result, "", ())
    ]


def _leaves(value: Any, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor) or value is None or id(value) in above:
        yield path, value
        return
    parts = None if len(above) >= _DEEPEST else _parts(value)
    if parts is None:
        yield path, value
        return
    for name, part in parts:
        yield from _leaves(part, path + name, (*above, id(value)))


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    """What a value consists of, by name; None for one that is a value of its own."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", getattr(value, name)) for name in value._fields]
    if isinstance(value, (tuple, list)):
        return [(f"[{number}]", part) for number, part in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [
            (f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)
        ]
    if isinstance(value, type) or callable(value) or not hasattr(value, "__dict__"):
        return None
    return [(f".{name}", part) for name, part in vars(value).items()]


def compared(ours: Sequence[Leaf], expected: Sequence[Leaf]) -> tuple[float | None, str]:
    """The largest absolute difference of tensors and numbers, and why that is no good number,
    or "".
    """
    if [leaf.form for leaf in ours] != [leaf.form for leaf in expected]:
        return math.inf, f"the outputs differ {_first_difference(ours, expected)}"
    largest: float | None = None
    for mine, other in zip(ours, expected, strict=True):
        gap = _gap(mine.value, other.value)
        if gap is None:
            continue
        if math.isinf(gap):
            return gap, f"the outputs differ by an infinity{_at(mine.path)}"
        if math.isnan(gap):  # max() would drop a NaN that is not the first
            return gap, f"the outputs differ by a NaN{_at(mine.path)}"
        largest = gap if largest is None else max(largest, gap)
    for mine, other in zip(ours, expected, strict=True):
        if _gap(mine.value, other.value) is None and not _alike(mine.value, other.value):
            return (
                math.inf,
                f"the outputs differ{_at(mine.path)}: {mine.value!r} for {other.value!r}",
            )
    if largest is None:
        return None, "the output holds no tensor and no number: nothing to compare"
    return largest, ""


def scale_of(leaves: Sequence[Leaf]) -> float:
    """The largest finite absolute value of tensors and numbers in an output, at least 1."""
    scale = 1.0
    for leaf in leaves:
        if isinstance(leaf.value, _NUMBERS):
            sizes = torch.tensor([_far(leaf.value, 0)])
        elif isinstance(leaf.value, torch.Tensor):
            sizes = _dense(leaf.value).to(_wide(leaf.value)).abs().double()
        else:
            continue
        finite = sizes[sizes.isfinite()]
        scale = max(scale, float(finite.max())) if finite.numel() else scale
    return scale


def _first_difference(ours: Sequence[Leaf], expected: Sequence[Leaf]) -> str:
    for mine, other in zip(ours, expected, strict=False):
        if mine.path != other.path:
            return (
                f"in structure: {mine.path or 'a value'} where eager has {other.path or 'a value'}"
            )
        if mine.form != other.form:
            return f"in kind{_at(mine.path)}: {mine.describe()} where eager has {other.describe()}"
    return f"in structure: {len(ours)} values where eager has {len(expected)}"


def _at(path: str) -> str:
    return f" at {path}" if path else ""


def _gap(ours: Any, expected: Any) -> float | None:
    """The largest absolute difference of two tensors of one shape and dtype, or of two numbers;
    None for other things, and for tensors without elements. Infinities that are the same differ by
    0, and so does NaN from NaN.
    """
    if isinstance(ours, _NUMBERS):
        return (
            0.0
            if ours == expected or (ours != ours and expected != expected)
            else _far(ours, expected)
        )
    if not isinstance(ours, torch.Tensor):
        return None
    if not ours.numel():
        return 0.0
    wide = _wide(ours)
    x, y = (_dense(tensor).to(wide) for tensor in (ours, expected))
    same = (x == y) | (x.isnan() & y.isnan())
    return float((x - y).abs().double().masked_fill(same, 0.0).max())


def _far(ours: complex, expected: complex) -> float:
    try:
        return float(abs(ours - expected))
    except OverflowError:  # whole numbers that no float holds
        return math.inf


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().cpu()
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def _wide(tensor: torch.Tensor) -> torch.dtype:
    """The dtype in which differences are exact: integers stay so, also beyond 2**53."""
    if tensor.is_complex():
        return torch.complex128
    return torch.float64 if tensor.is_floating_point() or tensor.is_quantized else torch.int64


def _alike(ours: Any, expected: Any) -> bool:
    """Whether two values that are no numbers are equal; True where their class does not say."""
    if isinstance(ours, torch.Tensor) or ours is expected:
        return True
    owner = next(kind for kind in type(ours).__mro__ if "__eq__" in vars(kind))
    equal = ours == expected
    return owner is object or not isinstance(equal, bool) or equal
