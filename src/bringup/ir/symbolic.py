"""Sizes that are not known yet, as numbers to compute and to compare with: `2 * s0 + 1`.

Nothing here evaluates a size or adds a guard. A comparison holds for every size that there may be,
or it refuses the match.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, Union

from bringup.errors import PassSkipException

Bounds: TypeAlias = tuple[float, float]
"""The least and the largest value that there may be; infinite where that is not known."""


@dataclass(frozen=True)
class _Atom:
    """What a sum of products is made of: a named size, or the quotient of two sizes."""

    text: str
    bounds: Bounds
    operands: tuple[Dim, ...] = ()  # of a quotient


_Product: TypeAlias = tuple[_Atom, ...]


class SymbolicDim:
    """A size, or another number made of sizes, that differs from call to call.

    `+`, `-`, `*`, `//`, `%` and `**` with whole numbers and other sizes give a number, or another
    symbolic one; as an argument in a replacement it becomes what computes it. Comparisons and truth
    give an answer that holds for every size; where there is none, and for `int`, `float` and
    arithmetic with floats, they raise `PassSkipException`, which leaves the match alone.
    `same_size` asks whether two sizes are known to be equal without refusing anything.

    Args:
        terms: the factor of each product of sizes. Use `named` for a new size, then arithmetic.
    """

    __slots__ = ("_terms", "_text")

    def __init__(self, terms: Mapping[_Product, int]) -> None:
        self._terms = dict(sorted(terms.items(), key=_order))
        self._text = _sum_text(self._terms)

    @classmethod
    def named(cls, name: str, least: float = 0, most: float = math.inf) -> SymbolicDim:
        """Return the size of this name, between `least` and `most`, both included."""
        return cls({(_Atom(name, (least, most)),): 1})

    @property
    def bounds(self) -> Bounds:
        """Return the least and the largest value it may have, as far as that is known."""
        least = most = 0.0
        for product, factor in self._terms.items():
            low, high = _product_bounds(product, factor)
            least, most = least + low, most + high
        return least, most

    def build(self, combine: Callable[[str, object, object], object], leaf: Leaf) -> object:
        """Return the size, made out of its parts: `combine` makes `left + right` and the like,
        given "+", "*" or "//" and both sides, `leaf` what a named part stands for.
        """
        total: object = None
        for product, factor in self._terms.items():
            part: object = None
            for atom in product:
                made = _built_atom(atom, combine, leaf)
                part = made if part is None else combine("*", part, made)
            if part is None:
                part = factor
            elif factor != 1:
                part = combine("*", part, factor)
            total = part if total is None else combine("+", total, part)
        return total

    def evaluate(self, size_of: Callable[[str], int]) -> int:
        """Return the number that it is where each named size is what `size_of` says."""
        value = self.build(_compute, lambda dim: size_of(str(dim)))
        assert isinstance(value, int), "made of numbers"
        return value

    # Arithmetic

    def __add__(self, other: object) -> Dim:
        terms = _terms_of(other)
        if terms is None:
            return NotImplemented
        total = dict(self._terms)
        for product, factor in terms.items():
            total[product] = total.get(product, 0) + factor
        return _simplest(total)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: object) -> Dim:
        return self + other * -1 if isinstance(other, (int, float, SymbolicDim)) else NotImplemented

    def __rsub__(self, other: object) -> Dim:
        terms = _terms_of(other)
        return NotImplemented if terms is None else self * -1 + _simplest(terms)

    def __mul__(self, other: object) -> Dim:
        terms = _terms_of(other)
        if terms is None:
            return NotImplemented
        total: dict[_Product, int] = {}
        for left, factor in self._terms.items():
            for right, other_factor in terms.items():
                product = tuple(sorted((*left, *right), key=lambda atom: atom.text))
                total[product] = total.get(product, 0) + factor * other_factor
        return _simplest(total)

    __rmul__ = __mul__

    def __floordiv__(self, other: object) -> Dim:
        return _quotient(self, other) if isinstance(other, (int, SymbolicDim)) else NotImplemented

    def __rfloordiv__(self, other: object) -> Dim:
        return _quotient(other, self) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: object) -> Dim:
        return self - self // other * other if _is_size(other) else NotImplemented  # type: ignore[operator]

    def __rmod__(self, other: object) -> Dim:
        return other - other // self * self if isinstance(other, int) else NotImplemented

    # What gives no whole number, as in `shape[-1] ** -0.5`, needs the size itself.

    def __truediv__(self, other: object) -> float:
        return float(self)

    __rtruediv__ = __rpow__ = __truediv__

    def __pow__(self, exponent: object) -> Dim:
        if not isinstance(exponent, int) or exponent < 0:
            return int(self)
        power: Dim = 1
        for _ in range(exponent):
            power = self * power
        return power

    # Comparison

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return self._text == other
        if isinstance(other, SymbolicDim) and self._text == other._text:
            return True
        if not isinstance(other, (int, float, SymbolicDim)):
            return NotImplemented
        difference = self._minus(other)
        if not isinstance(difference, SymbolicDim):
            return difference == 0
        least, most = difference.bounds
        if least > 0 or most < 0 or not difference._may_be_zero():
            return False
        raise self._undecided("==", other)

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return NotImplemented if equal is NotImplemented else not equal

    def __lt__(self, other: object) -> bool:
        return self._is_less("<", other)

    def __ge__(self, other: object) -> bool:
        return not self._is_less(">=", other)

    def __gt__(self, other: object) -> bool:
        return not self._is_less(">", other, or_equal=True)

    def __le__(self, other: object) -> bool:
        return self._is_less("<=", other, or_equal=True)

    def __bool__(self) -> bool:
        return self != 0

    def __hash__(self) -> int:
        return hash(self._text)

    def __int__(self) -> int:
        raise PassSkipException(f"the size {self} is no number before the graph runs")

    __index__ = __int__

    def __float__(self) -> float:
        return float(int(self))

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def _minus(self, other: float | SymbolicDim) -> float | Dim:
        """Return the difference; a number that is no size is far from all sizes."""
        if isinstance(other, float):
            if not other.is_integer():
                return math.nan
            other = int(other)
        return self - other

    def _is_less(self, sign: str, other: object, *, or_equal: bool = False) -> bool:
        if not isinstance(other, (int, float, SymbolicDim)):
            raise TypeError(f"the size {self} cannot be compared with {other!r} ({sign})")
        if isinstance(other, float):
            if math.isinf(other):
                return other > 0
            other = math.floor(other) if or_equal else math.ceil(other)
        difference = self - other
        if not isinstance(difference, SymbolicDim):
            return difference <= 0 if or_equal else difference < 0
        least, most = difference.bounds
        if most < 0 or (or_equal and most == 0):
            return True
        if least > 0 or (not or_equal and least == 0):
            return False
        raise self._undecided(sign, other)

    def _may_be_zero(self) -> bool:
        """Return False where a common factor of all that varies does not divide the rest."""
        common = math.gcd(*[factor for product, factor in self._terms.items() if product])
        return self._terms.get((), 0) % common == 0

    def _undecided(self, sign: str, other: object) -> PassSkipException:
        known = [
            f"{atom.text} is {_bounds_text(atom.bounds)}"
            for atom in dict.fromkeys(atom for product in self._terms for atom in product)
        ]
        return PassSkipException(
            f"whether {self} {sign} {other} depends on the size ({', '.join(known)})"
        )


Dim: TypeAlias = Union[int, SymbolicDim]  # noqa: UP007  evaluated, and a class of this module
"""One dimension: a number, or one that differs from call to call."""

DimLike: TypeAlias = Union[int, str, SymbolicDim]  # noqa: UP007
"""What a dimension is declared with: also the name of a size."""

Leaf: TypeAlias = Callable[[SymbolicDim], object]


def as_dim(size: DimLike) -> Dim:
    return SymbolicDim.named(size) if isinstance(size, str) else size


def same_size(left: object, right: object) -> bool:
    """Return whether sizes `left` and `right` are known to be equal; False is no refusal."""
    if isinstance(left, SymbolicDim) or isinstance(right, SymbolicDim):
        return type(left) is type(right) and str(left) == str(right)
    return left == right


def sizes_in(argument: object) -> Iterator[SymbolicDim]:
    """Return every symbolic size in an argument of a node, which may be nested."""
    if isinstance(argument, SymbolicDim):
        yield argument
    elif isinstance(argument, (tuple, list)):
        for item in argument:
            yield from sizes_in(item)


def _is_size(given: object) -> bool:
    return isinstance(given, (int, SymbolicDim))


def _terms_of(given: object) -> Mapping[_Product, int] | None:
    if isinstance(given, SymbolicDim):
        return given._terms
    if isinstance(given, float):
        raise PassSkipException(f"arithmetic of a size with {given} needs the size itself")
    return {(): int(given)} if isinstance(given, int) else None


def _simplest(terms: Mapping[_Product, int]) -> Dim:
    left = {product: factor for product, factor in terms.items() if factor}
    return left.get((), 0) if left.keys() <= {()} else SymbolicDim(left)


def _quotient(left: Dim, right: Dim) -> Dim:
    """Return the floor quotient; what divides exactly is divided, the rest stands for itself."""
    if isinstance(right, int) and right == 0:
        raise ZeroDivisionError(f"{left} // 0")
    whole: dict[_Product, int] = {}
    rest: dict[_Product, int] = {}
    terms = _terms_of(left)
    assert terms is not None, "a number or a size"
    for product, factor in terms.items():
        quotient = _exact(product, factor, right)
        if quotient is None:
            rest[product] = factor
        else:
            whole[quotient[0]] = whole.get(quotient[0], 0) + quotient[1]
    return _simplest(whole) + _inexact(_simplest(rest), right)


def _exact(product: _Product, factor: int, divisor: Dim) -> tuple[_Product, int] | None:
    """Return what one summand is divided by the divisor, if it is a multiple of it."""
    if isinstance(divisor, int):
        return (product, factor // divisor) if factor % divisor == 0 else None
    if len(divisor._terms) != 1 or divisor.bounds[0] < 1:
        return None
    ((parts, number),) = divisor._terms.items()
    left = list(product)
    for atom in parts:
        if atom not in left:
            return None
        left.remove(atom)
    return (tuple(left), factor // number) if factor % number == 0 else None


def _inexact(rest: Dim, divisor: Dim) -> Dim:
    if isinstance(rest, int) and isinstance(divisor, int):
        return rest // divisor
    low, high = rest.bounds if isinstance(rest, SymbolicDim) else (rest, rest)
    least, most = divisor.bounds if isinstance(divisor, SymbolicDim) else (divisor, divisor)
    bounds: Bounds = (-math.inf, math.inf)
    if low >= 0 and least >= 1:
        if high < least:
            return 0
        bounds = (
            0 if math.isinf(most) else low // most,
            high if math.isinf(high) else high // least,
        )
    text = f"({_operand(rest)}//{_operand(divisor)})"
    return SymbolicDim({(_Atom(text, bounds, (rest, divisor)),): 1})


def _operand(dim: Dim) -> str:
    is_plain = isinstance(dim, int) or (
        len(dim._terms) == 1 and next(iter(dim._terms.values())) == 1
    )
    return str(dim) if is_plain else f"({dim})"


def _built_atom(
    atom: _Atom, combine: Callable[[str, object, object], object], leaf: Leaf
) -> object:
    if not atom.operands:
        return leaf(SymbolicDim({(atom,): 1}))
    left, right = (
        operand.build(combine, leaf) if isinstance(operand, SymbolicDim) else operand
        for operand in atom.operands
    )
    return combine("//", left, right)


def _compute(sign: str, left: object, right: object) -> int:
    assert isinstance(left, int), "leaves are numbers"
    assert isinstance(right, int), "likewise"
    if sign == "+":
        return left + right
    return left * right if sign == "*" else left // right


def _product_bounds(product: _Product, factor: int) -> Bounds:
    least = most = float(factor)
    for atom in product:
        ends = [_times(one, other) for one in (least, most) for other in atom.bounds]
        least, most = min(ends), max(ends)
    return least, most


def _times(left: float, right: float) -> float:
    return 0.0 if 0 in (left, right) else left * right


def _order(term: tuple[_Product, int]) -> tuple[object, ...]:
    product = term[0]
    return (not product, [atom.text for atom in product])


def _sum_text(terms: Mapping[_Product, int]) -> str:
    text = ""
    for product, factor in terms.items():
        sign = "-" if factor < 0 else "+" if text else ""
        parts = [atom.text for atom in product]
        if abs(factor) != 1 or not parts:
            parts.insert(0, str(abs(factor)))
        shown = "*".join(parts)
        text += f" {sign} {shown}" if text else f"{sign}{shown}"
    return text


def _bounds_text(bounds: Bounds) -> str:
    least, most = bounds
    if math.isinf(least) and math.isinf(most):
        return "any number"
    return f"at least {least:g}" if math.isinf(most) else f"from {least:g} to {most:g}"
