"""Expressions over a kernel's arguments, evaluated as in native/runtime/expression.cpp."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bringup._language._core import NativeExpression, Opcode
from bringup._language.signature import address_of, dtype_number, strides_of
from bringup.errors import ContractError

__all__ = ["Expression", "Instruction", "Opcode", "bits_of", "double_of"]


class Instruction(NamedTuple):
    """One step: an opcode with the argument's index and a constant, where it has them."""

    opcode: Opcode
    argument: int = -1
    value: int = 0

    @property
    def growth(self) -> int:
        """By how much it makes the stack deeper."""
        if self.opcode in (Opcode.NOT, Opcode.WORKSPACE, *_DEFAULTED):
            return 0
        return -1 if self.opcode in _OPERATORS else 1

    @property
    def item(self) -> int:
        """Return, of one with a default, which item of a list it names; -1 for none."""
        return self.value >> 32

    @property
    def dimension(self) -> int:
        """Return the dimension that it names, which may count from the end."""
        return (self.value & 0xFFFFFFFF ^ 1 << 31) - (1 << 31)


# What is true is 1. Both sides are evaluated: `n != 0 and 4 // n > 1` divides by zero, as natively.
_OPERATORS: Mapping[Opcode, Callable[[Any, Any], Any]] = {
    Opcode.ADD: operator.add, Opcode.SUBTRACT: operator.sub, Opcode.MULTIPLY: operator.mul,
    Opcode.FLOOR_DIVIDE: operator.floordiv, Opcode.MODULO: operator.mod,
    Opcode.LESS: lambda left, right: int(bool(left < right)),
    Opcode.EQUAL: lambda left, right: int(bool(left == right)),
    Opcode.MINIMUM: lambda left, right: left if left < right else right,
    Opcode.AND: lambda left, right: int(bool(left) and bool(right)),
    Opcode.OR: lambda left, right: int(bool(left) or bool(right)),
}  # fmt: skip
_OF_LISTS = (Opcode.ELEMENT, Opcode.ITEM_DATA, Opcode.ITEM_NUMEL)
_DEFAULTED = (Opcode.SIZE_OR, Opcode.STRIDE_OR)
_AS_GIVEN = (Opcode.FLOAT, Opcode.STRING, Opcode.TENSOR)


@dataclass(frozen=True)
class Expression:
    """What the user wrote, its program, and its arguments' names; what is true is 1."""

    text: str  # as written
    program: tuple[Instruction, ...]  # at most 16 values are on the stack
    names: tuple[str, ...] = ()  # of all arguments
    texts: tuple[str, ...] = ()  # literals of the program
    is_real: bool = False  # whether constants are the bits of a double

    def evaluate(self, values: Sequence[Any]) -> Any:
        """Return an int, a SymInt where sizes are, a float, a text, an address, or a tensor as it
        is, for arguments of torch or numpy. Of None every number is 0; stream, device and the
        word of fault() are None. Raises `ContractError` (without the kernel's name) for a
        missing dimension, a division by zero and a result beyond 64 bits.
        """
        stack: list[Any] = []
        for step in self.program:
            if step.opcode is Opcode.NOT:
                stack[-1] = int(not stack[-1])
            elif step.opcode in _DEFAULTED:
                stack[-1] = _dimension_or(step, values[step.argument], stack[-1])
            elif step.opcode in _OPERATORS:
                right = stack.pop()
                stack[-1] = self._combine(step.opcode, stack[-1], right)
            elif step.opcode is not Opcode.WORKSPACE:
                stack.append(self._leaf(step, values))
        return stack[0]

    def native(self) -> NativeExpression:
        return NativeExpression(self.text, list(self.program), list(self.texts))

    def _leaf(self, step: Instruction, values: Sequence[Any]) -> Any:
        opcode = step.opcode
        if opcode is Opcode.CONSTANT:
            return double_of(step.value) if self.is_real else step.value
        if opcode is Opcode.TEXT:
            return self.texts[step.value]
        if opcode in (Opcode.STREAM, Opcode.DEVICE, Opcode.FAULT):
            return None
        given = values[step.argument]
        if opcode is Opcode.HAS:
            return int(given is not None)
        if opcode in _AS_GIVEN:
            return given
        if opcode is Opcode.REAL:
            return 0.0 if given is None else float(given)
        if opcode in (Opcode.DATA, Opcode.LIST_DATA):
            return address_of(given)
        if opcode in (Opcode.SIZE_ALONG, Opcode.STRIDE_ALONG):
            return 0 if given is None else self._along(step, given, values[step.value])
        if opcode in _OF_LISTS:
            return _item(opcode, given if isinstance(given, (list, tuple)) else (), step.value)
        return 0 if given is None else self._number(step, given)

    def _number(self, step: Instruction, given: Any) -> Any:
        opcode = step.opcode
        if opcode is Opcode.INT:
            return int(given) if isinstance(given, bool) else given
        if opcode is Opcode.LENGTH:
            return len(given)
        if opcode is Opcode.NUMEL:
            return math.prod(given.shape)
        if opcode in (Opcode.DTYPE, Opcode.DTYPE_CODE, Opcode.DTYPE_BITS):
            return dtype_number(given.dtype, opcode.name.lower())
        rank = len(given.shape)
        if opcode is Opcode.NDIM:
            return rank
        if not -rank <= step.value < rank:
            shape = ", ".join(map(str, given.shape))
            raise ContractError(f"{self.needs(step)}, got shape [{shape}]")
        return (given.shape if opcode is Opcode.SIZE else strides_of(given))[step.value]

    def _along(self, step: Instruction, given: Any, dim: Any) -> Any:
        rank, index = max(len(given.shape), 1), dim or 0
        if not -rank <= index < rank:
            shape = ", ".join(map(str, given.shape))
            raise ContractError(f"{self.needs(step)}, got shape [{shape}]")
        if not len(given.shape):
            return 1
        return (given.shape if step.opcode is Opcode.SIZE_ALONG else strides_of(given))[index]

    def needs(self, step: Instruction) -> str:
        """Return what a step that names a dimension asks of its tensor."""
        name = self.names[step.argument]
        if step.opcode in (Opcode.SIZE_ALONG, Opcode.STRIDE_ALONG):
            return f"{name} must have the dimension that '{self.text}' asks for"
        needed = -step.value if step.value < 0 else step.value + 1
        return f"{name} must have at least {needed} dimensions for '{self.text}'"

    def _combine(self, opcode: Opcode, left: Any, right: Any) -> Any:
        divides = opcode in (Opcode.FLOOR_DIVIDE, Opcode.MODULO)
        if divides and isinstance(right, int) and right == 0:
            raise ContractError(f"'{self.text}' divides by zero")
        result = _OPERATORS[opcode](left, right)
        if isinstance(result, int) and not -(2**63) <= result < 2**63:
            raise ContractError(f"'{self.text}' does not fit into 64 bits")
        return result


def _dimension_or(step: Instruction, given: Any, otherwise: Any) -> Any:
    if given is not None and step.item >= 0:
        given = given[step.item] if step.item < len(given) else None
    if given is None or not -len(given.shape) <= step.dimension < len(given.shape):
        return otherwise
    numbers = given.shape if step.opcode is Opcode.SIZE_OR else strides_of(given)
    return numbers[step.dimension]


def _item(opcode: Opcode, given: Sequence[Any], number: int) -> Any:
    item = given[number] if number < len(given) else None
    if item is None:
        return None if opcode is Opcode.ITEM_DATA else 0
    if opcode is Opcode.ITEM_DATA:
        return address_of(item)
    return int(item) if opcode is Opcode.ELEMENT else math.prod(item.shape)


def bits_of(number: float) -> int:
    (bits,) = struct.unpack("<q", struct.pack("<d", number))
    return int(bits)


def double_of(bits: int) -> float:
    (number,) = struct.unpack("<d", struct.pack("<q", bits))
    return float(number)
