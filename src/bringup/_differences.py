"""The values in a result, by name, and how far two are apart; what is allowed is the caller's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

NUMBERS = (bool, int, float, complex)
_DEEPEST = 32


@dataclass(frozen=True)
class Leaf:
    """One value in a result."""

    path: str  # how it is reached from the result: `.logits`, `[0]['hidden']`; "" for the result
    value: Any  # a tensor (copied), a number, or anything else that is compared by `==`

    @property
    def form(self) -> object:
        """Return what two leaves must share to be compared."""
        if isinstance(self.value, torch.Tensor):
            return self.path, tuple(self.value.shape), self.value.dtype
        kind = "number" if isinstance(self.value, NUMBERS) else type(self.value).__name__
        return self.path, kind

    def describe(self) -> str:
        """Return the leaf in words: its kind, for tensors with dtype and shape."""
        if isinstance(self.value, torch.Tensor):
            dtype = str(self.value.dtype).removeprefix("torch.")
            return f"{dtype}{list(self.value.shape)}"
        return type(self.value).__name__


def leaves(result: Any) -> list[Leaf]:
    """Return a result's values in order, of nested tuples, lists, mappings, dataclasses and
    objects; tensors are copied, for a captured graph overwrites its own.
    """
    return [
        Leaf(path, value.detach().clone() if isinstance(value, torch.Tensor) else value)
        for path, value in _walk(result, "", ())
    ]


def _walk(value: Any, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor) or value is None or id(value) in above:
        yield path, value
        return
    parts = None if len(above) >= _DEEPEST else _parts(value)
    if parts is None:
        yield path, value
        return
    for name, part in parts:
        yield from _walk(part, path + name, (*above, id(value)))


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    """Return what a value consists of, by name; None for one that is a value of its own."""
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


def form_difference(ours: Sequence[Leaf], expected: Sequence[Leaf]) -> str:
    """Return how two results differ in structure, shapes, dtypes or kinds, in words, or ""."""
    for mine, other in zip(ours, expected, strict=False):
        if mine.path != other.path:
            return (
                f"in structure: {mine.path or 'a value'} where eager has {other.path or 'a value'}"
            )
        if mine.form != other.form:
            return f"in kind{_at(mine.path)}: {mine.describe()} where eager has {other.describe()}"
    if len(ours) != len(expected):
        return f"in structure: {len(ours)} values where eager has {len(expected)}"
    return ""


def largest_gap(ours: Sequence[Leaf], expected: Sequence[Leaf]) -> tuple[float | None, str]:
    """Return the largest absolute difference, and why that is no good number, or ""."""
    if words := form_difference(ours, expected):
        return math.inf, f"the outputs differ {words}"
    largest: float | None = None
    pairs = [
        (mine, other, gap(mine.value, other.value))
        for mine, other in zip(ours, expected, strict=True)
    ]
    for mine, _, apart in pairs:
        if apart is None:
            continue
        if not math.isfinite(apart):  # max() would drop a NaN that is not the first
            kind = "a NaN" if math.isnan(apart) else "an infinity"
            return apart, f"the outputs differ by {kind}{_at(mine.path)}"
        largest = apart if largest is None else max(largest, apart)
    for mine, other, apart in pairs:
        if apart is None and not alike(mine.value, other.value):
            words = f"{mine.value!r} for {other.value!r}"
            return math.inf, f"the outputs differ{_at(mine.path)}: {words}"
    if largest is None:
        return None, "the output holds no tensor and no number: nothing to compare"
    return largest, ""


def _at(path: str) -> str:
    return f" at {path}" if path else ""


def alike(ours: Any, expected: Any) -> bool:
    """Return whether two values that are no numbers are equal, or their class does not say."""
    if ours is expected:
        return True
    owner = next(kind for kind in type(ours).__mro__ if "__eq__" in vars(kind))
    equal = ours == expected
    return owner is object or not isinstance(equal, bool) or equal


def gap(ours: Any, expected: Any, *, nonfinite_equal: bool = True) -> float | None:
    """Return the largest absolute difference of two tensors of one form, or two numbers, or else
    None. NaN and infinities differ by NaN unless `nonfinite_equal`.
    """
    if isinstance(ours, NUMBERS):
        same = ours == expected or (ours != ours and expected != expected)
        return 0.0 if same and (nonfinite_equal or ours - ours == 0) else _far(ours, expected)
    if not isinstance(ours, torch.Tensor):
        return None
    if not ours.numel():
        return 0.0
    x, y = _wide(ours), _wide(expected)
    if x.dtype is torch.int64:
        return _integer_gap(x, y)
    apart = (x - y).abs()
    if nonfinite_equal:
        apart = apart.masked_fill((x == y) | (x.isnan() & y.isnan()), 0.0)
    return float(apart.max())


def _far(ours: complex, expected: complex) -> float:
    try:
        return float(abs(ours - expected))
    except OverflowError:  # whole numbers that no float holds
        return math.inf


def _integer_gap(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the largest difference of whole numbers, exact beyond 2**53 until it is rounded."""
    apart = torch.maximum(x, y) - torch.minimum(x, y)
    wrapped = torch.where(apart < 0, 2.0**64, 0.0)  # it needs 64 bits without a sign
    return float((apart.double() + wrapped).max())


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in the dtype in which they are exact; of uint64 in the same order."""
    dense = as_strided_on_host(tensor)
    if dense.is_complex():
        return dense.to(torch.complex128)
    if dense.is_floating_point():
        return dense.double()
    if dense.dtype is torch.uint64:
        return dense.view(torch.int64) ^ torch.iinfo(torch.int64).min
    return dense.to(torch.int64)


def as_strided_on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of any tensor as a plain one on the host: dense and dequantized."""
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu()
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def magnitude(value: Any) -> float:
    """Return the largest finite absolute value in a tensor or number; 0 where there is none."""
    if isinstance(value, NUMBERS):
        size = _far(value, 0)
        return size if math.isfinite(size) else 0.0
    if not isinstance(value, torch.Tensor) or not value.numel():
        return 0.0
    dense = as_strided_on_host(value)
    sizes = dense.to(torch.complex128 if dense.is_complex() else torch.float64).abs()
    return float(torch.where(sizes.isfinite(), sizes, 0.0).max())


def cosine(ours: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the cosine of all elements: 1.0 for equal ones and two zeros; 0.0 if not finite."""
    x, y = ours.detach().double().flatten(), expected.detach().double().flatten()
    if not bool(x.isfinite().all() & y.isfinite().all()):
        return 0.0
    return 1.0 if torch.equal(x, y) else float(torch.cosine_similarity(x, y, dim=0))


def not_close(ours: Any, expected: Any, **options: Any) -> str:
    """Return how two values are not close by `assert_close` with these `options`, or ""."""
    try:
        torch.testing.assert_close(ours, expected, equal_nan=True, **options)
    except (AssertionError, TypeError) as error:
        return " ".join(str(error).split())
    return ""


def same_bytes(ours: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether two contiguous tensors hold the same bits."""
    return bool(torch.equal(ours.view(torch.uint8), expected.view(torch.uint8)))
