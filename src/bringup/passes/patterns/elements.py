"""The pieces of a pattern besides operators: open arguments, constants, parts that may be absent,
alternatives. Lists of open length are in `pattern`, for their items may be patterns.

What only stands for an argument is an `ArgumentPattern`; alternatives are nodes of the pattern's
graph (type `ir::one_of`), because they join values that the graph computes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from bringup import ir
from bringup._numbers import identity

KINDS = ("bool", "int", "float", "str", "none", "list", "tensor")
"""What `any_value(kind=...)` may ask for."""


class ArgumentPattern:
    """Stands for an argument of a node of a pattern, without being a value of the pattern."""

    is_open_argument = True
    """Tells the native graph that a call with it cannot be shaped."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArgumentPattern) or type(self) is not type(other):
            return False
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> Hashable:
        return identity(tuple(vars(self).values()))


@dataclass(frozen=True, eq=False)
class AnyValue(ArgumentPattern):
    """Matches any argument; a name captures it, and means the same argument wherever it stands.

    Attributes:
        name: what the argument is captured as; "" when it is not.
        kinds: of what kind it must be; empty for any.
        among: the host arguments it must be one of; None for any.
        at_least, at_most: bounds of a number.
    """

    name: str = ""
    kinds: tuple[str, ...] = ()
    among: tuple[object, ...] | None = None
    at_least: float = -math.inf
    at_most: float = math.inf

    @property
    def bounded(self) -> bool:
        """Return whether the argument must be a number within bounds."""
        return self.at_least != -math.inf or self.at_most != math.inf

    def __repr__(self) -> str:
        stated = [repr(self.name)] if self.name else []
        if self.kinds:
            stated.append(f"kind={'|'.join(self.kinds)}")
        if self.among is not None:
            stated.append(f"among={self.among!r}")
        if self.at_least != -math.inf:
            stated.append(f"at_least={self.at_least!r}")
        if self.at_most != math.inf:
            stated.append(f"at_most={self.at_most!r}")
        return f"any_value({', '.join(stated)})"


@dataclass(frozen=True, eq=False)
class Constant(ArgumentPattern):
    """Matches a host number or a constant of the graph.

    Attributes:
        name: what it is captured as; "" when it is not.
        values: the elements in row-major order, or one that all elements must equal; empty for any.
        shape: of a constant with these elements; None when one value stands for all of them.
        atol, rtol: how far an element may be off, absolutely and relative to what is expected.
    """

    name: str = ""
    values: tuple[float, ...] = ()
    shape: tuple[int, ...] | None = None
    atol: float = 0.0
    rtol: float = 0.0

    def __repr__(self) -> str:
        stated = []
        if self.values:
            shown = self.values[0] if self.shape is None else list(self.values)
            stated.append(repr(shown))
        stated.extend(
            f"{key}={item!r}" for key, item in (("atol", self.atol), ("rtol", self.rtol)) if item
        )
        if self.shape is not None and len(self.shape) != 1:
            stated.append(f"shape={self.shape}")
        if self.name:
            stated.append(f"name={self.name!r}")
        return f"constant({', '.join(stated)})"


def any_value(
    name: str = "",
    *,
    kind: str | Sequence[str] = (),
    among: Iterable[object] | None = None,
    at_least: float = -math.inf,
    at_most: float = math.inf,
) -> AnyValue:
    """Return an open argument of a pattern: `builder.op("aten::view", x,
    passes.any_value("size"))`.

    With a name it is captured: `match_result["size"]`. It also matches values, e.g. a size that is
    computed, unless it is restricted. An operator that is named without its overload has its
    default or first one that takes tensors here: name it, `"aten::pow.Tensor_Scalar"`.

    Args:
        name: what it is captured as; the same name means the same argument.
        kind: one or several of bool, int, float, str, none, list, tensor. Any other host object
            (a dtype, a device) is of no kind: restrict it with `among`.
        among: host arguments, compared by type and value, numbers to the bit. For a `Scalar` 1 and
            1.0 are one number where a floating point tensor decides the dtype.
        at_least, at_most: bounds of a number; then nothing else matches.

    Raises `ValueError` for an unknown kind, and for a bound that no float is.
    """
    for bound in (at_least, at_most):
        if isinstance(bound, int) and not -(2**53) <= bound <= 2**53 and int(float(bound)) != bound:
            raise ValueError(f"any_value: {bound} is a bound that no float is")
    kinds = (kind,) if isinstance(kind, str) else tuple(kind)
    for item in kinds:
        if item not in KINDS:
            raise ValueError(f"any_value: kind must be among {', '.join(KINDS)}, got {item!r}")
    return AnyValue(name, kinds, None if among is None else tuple(among), at_least, at_most)


def constant(
    value: object = None, *, atol: float = 0.0, rtol: float = 0.0, name: str = ""
) -> Constant:
    """Return a constant argument of a pattern: a number in the call, or a constant of the graph,
    which stays when others read it too.

    Args:
        value: a number, which every element must equal, rounded to the constant's dtype; a nested
            sequence, array or tensor, whose shape must be the constant's; or None for any constant.
        atol, rtol: `|found - value| <= atol + rtol * |value|`; to the bit by default: 0.0 is not
            -0.0, NaN is the same NaN.
        name: what it is captured as.

    Raises `TypeError` for no number, `ValueError` for a bad tolerance or a ragged sequence.
    """
    for key, item in (("atol", atol), ("rtol", rtol)):
        if not 0 <= item < math.inf:
            raise ValueError(f"constant: {key} must be a finite number from 0 up, got {item!r}")
    if value is None:
        return Constant(name, (), None, atol, rtol)
    plain = value.tolist() if hasattr(value, "tolist") else value
    values: list[float] = []
    shape = _flatten(plain, values)
    is_array = isinstance(plain, (tuple, list))
    return Constant(name, tuple(values), shape if is_array else None, atol, rtol)


def _flatten(item: object, into: list[float]) -> tuple[int, ...]:
    """Append the numbers in nested sequences; returns their shape."""
    if isinstance(item, (bool, int, float)):
        if isinstance(item, int) and not -(2**63) <= item < 2**63:
            raise ValueError(f"constant: {item} does not fit into 64 bits")
        into.append(item)
        return ()
    if not isinstance(item, (tuple, list)):
        raise TypeError(
            f"constant: expected a number, nested numbers, an array or None, got {item!r}"
        )
    shapes = {_flatten(each, into) for each in item}
    if len(shapes) > 1:
        raise ValueError(f"constant: the rows of {item!r} differ in shape")
    return (len(item), *(shapes.pop() if shapes else ()))


def one_of(*alternatives: object, name: str = "") -> ir.TensorHolder:
    """Return one of several values: `passes.one_of(b.op("aten::gelu", x), b.op("aten::relu", x))`.

    The alternatives are tried in order. Each is a holder, a host argument, `None` or an
    `ArgumentPattern`; at least one is a holder.

    Args:
        name: for `match_result.chosen(name)`, the number of the alternative that matched.

    Raises `ValueError` for fewer than two alternatives, or none that is a holder.
    """
    holders = [item for item in alternatives if isinstance(item, ir.TensorHolder)]
    if len(alternatives) < 2 or not holders:
        raise ValueError(
            f"one_of takes two alternatives or more, one of them a holder, got {alternatives!r}"
        )
    return holders[0].builder.one_of(alternatives, name)


def optional(
    tensor: ir.TensorHolder, *, otherwise: object = ..., name: str = ""
) -> ir.TensorHolder:
    """Return a part of a pattern that may be absent.

    Args:
        tensor: an operator's result: where the operator is absent, `otherwise` stands in its place,
            by default its first operand that is a value (a cast or a bias that may be there or
            not). Or an input of the pattern: the argument may be None, and then so is the input in
            `match_result.inputs`.
        name: for `match_result.chosen(name)`: 0 when present, 1 when absent.

    `match_result.has(tensor)` says which. Raises `TypeError` for what is no holder and `ValueError`
    for an operator without an operand.
    """
    if not isinstance(tensor, ir.TensorHolder):
        raise TypeError(f"optional takes a holder, got {tensor!r}")
    node = tensor.value.node
    if otherwise is ...:
        if node.op_type == ir.INPUT:
            otherwise = None
        elif node.inputs:
            otherwise = ir.TensorHolder(tensor.builder, node.inputs[0])
        else:
            raise ValueError(
                f"optional: {node.op_type} has no operand to stand in its place; give otherwise="
            )
    return tensor.builder.one_of((tensor, otherwise), name)
