"""Torch's symbolic integers as sizes of ir, and back. Adds no guard: expressions are only read."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.utils._sympy import functions
from torch.utils._sympy.numbers import int_oo

from bringup import ir
from bringup._native import core

_PREFIX = "python::_operator."
ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    f"{_PREFIX}{name}": getattr(operator, name) for name in ("add", "mul", "floordiv")
}
"""The functions that compute with sizes in a graph of torch.fx, by the type of their node."""

SIZE_OPERATORS: Mapping[str, str] = {
    "size": "aten::sym_size.int",
    "+": f"{_PREFIX}add",
    "*": f"{_PREFIX}mul",
    "//": f"{_PREFIX}floordiv",
}

_Ranges = Callable[[Any], tuple[float, float]]
_QUOTIENTS = (functions.FloorDiv, functions.CleanDiv)
_REMAINDERS = (functions.Mod, functions.PythonMod)


class Sizes:
    """The symbolic sizes of one graph: each expression is made a size once."""

    def __init__(self) -> None:
        self._known: dict[Any, ir.Dim] = {}
        self._named: dict[str, ir.Dim] = {}
        self._expressions: dict[str, Any] = {}

    def dim_of(self, size: Any) -> ir.Dim:
        if not isinstance(size, torch.SymInt):
            return int(size)
        node = size.node
        expression = node.expr
        known = self._known.get(expression)
        if known is None:
            names: dict[str, Any] = {}
            known = _dim(expression, _ranges_of(node.shape_env), names)
            self._known[expression] = self._named[str(known)] = known
            self._expressions.update(names)
        return known

    def named(self, text: str) -> ir.Dim:
        known = self._named.get(text)
        return ir.SymbolicDim.named(text) if known is None else known

    def symint(self, size: ir.SymbolicDim, shape_env: Any) -> Any:
        """Return the symbolic integer that is this size. `KeyError` for a size of another graph."""
        expression = size.build(_combined, lambda dim: self._expressions[str(dim)])
        known = shape_env.has_guarding_hint(expression)
        hint = int(shape_env.guarding_hint_or_throw(expression)) if known else None
        return shape_env.create_symintnode(expression, hint=hint)


def _combined(sign: str, left: Any, right: Any) -> Any:
    if sign == "+":
        return left + right
    if sign == "*":
        return left * right
    return functions.FloorDiv(left, right)


def _dim(expression: Any, ranges: _Ranges, names: dict[str, Any]) -> ir.Dim:
    """Return an expression as a size; what has no counterpart is a name for itself."""
    if expression.is_Integer:
        return int(expression)
    parts = [_dim(item, ranges, names) for item in expression.args] if _is_known(expression) else []
    if isinstance(expression, sympy.Add):
        return sum(parts[1:], parts[0])
    if isinstance(expression, sympy.Mul):
        return math.prod(parts[1:], start=parts[0])
    if isinstance(expression, sympy.Pow):
        return math.prod([parts[0]] * (int(expression.args[1]) - 1), start=parts[0])
    if isinstance(expression, _QUOTIENTS):
        return parts[0] // parts[1]
    if isinstance(expression, _REMAINDERS):
        return parts[0] % parts[1]
    names[str(expression)] = expression
    return ir.SymbolicDim.named(str(expression), *ranges(expression))


def _is_known(expression: Any) -> bool:
    if isinstance(expression, sympy.Pow):
        exponent = expression.args[1]
        return bool(exponent.is_Integer and exponent > 0)
    if not isinstance(expression, (sympy.Add, sympy.Mul, *_QUOTIENTS, *_REMAINDERS)):
        return False
    return all(item.is_Integer for item in expression.args if item.is_Number)


def _ranges_of(shape_env: Any) -> _Ranges:
    def ranges(expression: Any) -> tuple[float, float]:
        if shape_env is None:
            return -math.inf, math.inf
        found = shape_env.bound_sympy(expression)
        return _number(found.lower), _number(found.upper)

    return ranges


def _number(bound: Any) -> float:
    if bound in (int_oo, sympy.oo):
        return math.inf
    return -math.inf if bound in (-int_oo, -sympy.oo) else int(bound)


@cache
def _text(expression: Any) -> str:
    return str(_dim(expression, lambda _: (-math.inf, math.inf), {}))


core().use_symbolic_type(torch.SymInt, lambda size: _text(size.node.expr))
for _kind in (torch.SymFloat, torch.SymBool):
    core().use_symbolic_type(_kind, lambda number: str(number.node.expr))
