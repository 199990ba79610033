"""Whole-number expressions over the arguments of a kernel: one grammar, one table of opcodes.

`"x.shape[0] // 2"` and `"size(x,0) // 2"` are the same postfix program. native/torch/ops/rules.cpp
runs it with int64 when an operator is called; `Expression.evaluate` runs it with ints or SymInts,
with the same results and words. Owns neither what the numbers are for nor lists of arguments.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from bringup._language.signature import strides_of
from bringup.errors import ContractError, SchemaError

__all__ = ["Expression", "ExpressionReader", "Instruction", "Opcode", "parse_expression"]

_MAX_DEPTH = 16  # kMaxDepth of rules.cpp
_GRAMMAR = (
    "an expression is made of integers, int and bool arguments, x.shape[i] or size(x,i), "
    "x.stride(i) or stride(x,i), x.numel() or numel(x), x.dim() or ndim(x), len(list), has(x), "
    "+ - * // %, comparisons, and, or, not and ()"
)


class Opcode(IntEnum):
    """What an instruction does; the numbers are those of rules.h."""

    CONSTANT = 0
    ARGUMENT = 1
    SIZE = 2
    NUMEL = 3
    LENGTH = 4
    ADD = 5
    SUBTRACT = 6
    MULTIPLY = 7
    FLOOR_DIVIDE = 8
    MODULO = 9
    STRIDE = 10
    NDIM = 11
    LESS = 12
    EQUAL = 13
    AND = 14
    OR = 15
    NOT = 16
    HAS = 17


class Instruction(NamedTuple):
    """One step: an opcode with the argument's index and a constant, where it has them."""

    opcode: Opcode
    argument: int = -1
    value: int = 0

    @property
    def growth(self) -> int:
        """By how much it makes the stack deeper."""
        if self.opcode is Opcode.NOT:
            return 0
        return -1 if self.opcode in _OPERATORS else 1


# What is true is 1. Both sides are evaluated: `n != 0 and 4 // n > 1` divides by zero, as natively.
_OPERATORS: Mapping[Opcode, Callable[[Any, Any], Any]] = {
    Opcode.ADD: operator.add,
    Opcode.SUBTRACT: operator.sub,
    Opcode.MULTIPLY: operator.mul,
    Opcode.FLOOR_DIVIDE: operator.floordiv,
    Opcode.MODULO: operator.mod,
    Opcode.LESS: lambda left, right: int(bool(left < right)),
    Opcode.EQUAL: lambda left, right: int(bool(left == right)),
    Opcode.AND: lambda left, right: int(bool(left) and bool(right)),
    Opcode.OR: lambda left, right: int(bool(left) or bool(right)),
}
_BINARY: Mapping[type[ast.operator], Opcode] = {
    ast.Add: Opcode.ADD,
    ast.Sub: Opcode.SUBTRACT,
    ast.Mult: Opcode.MULTIPLY,
    ast.FloorDiv: Opcode.FLOOR_DIVIDE,
    ast.Mod: Opcode.MODULO,
}
# Each comparison by LESS and EQUAL: the opcode, whether the sides change places, whether the
# answer is turned around.
_COMPARISONS: Mapping[type[ast.cmpop], tuple[Opcode, bool, bool]] = {
    ast.Lt: (Opcode.LESS, False, False),
    ast.Gt: (Opcode.LESS, True, False),
    ast.GtE: (Opcode.LESS, False, True),
    ast.LtE: (Opcode.LESS, True, True),
    ast.Eq: (Opcode.EQUAL, False, False),
    ast.NotEq: (Opcode.EQUAL, False, True),
}
# Names of functions and methods: the opcode, and whether a dimension is named.
_READS: Mapping[str, tuple[Opcode, bool]] = {
    "size": (Opcode.SIZE, True),
    "stride": (Opcode.STRIDE, True),
    "numel": (Opcode.NUMEL, False),
    "ndim": (Opcode.NDIM, False),
    "dim": (Opcode.NDIM, False),
    "len": (Opcode.LENGTH, False),
    "has": (Opcode.HAS, False),
}
_LISTS = ("int[]", "float[]", "bool[]", "Tensor[]")
_NOT = Instruction(Opcode.NOT)


@dataclass(frozen=True)
class Expression:
    """A whole number over a kernel's arguments: what the user wrote, its program, and the names of
    the arguments, for messages. What is true is 1.
    """

    text: str
    program: tuple[Instruction, ...]
    names: tuple[str, ...] = ()

    def evaluate(self, values: Sequence[Any]) -> Any:
        """The value for these arguments in the signature's order: an int, or a SymInt where sizes
        are. Of None every number is 0. Tensors are torch's or numpy's.

        Raises `ContractError` (without the kernel's name) for a missing dimension, a division by
        zero and a result beyond 64 bits.
        """
        stack: list[Any] = []
        for step in self.program:
            if step.opcode is Opcode.NOT:
                stack[-1] = int(not stack[-1])
            elif step.opcode in _OPERATORS:
                right = stack.pop()
                stack[-1] = self._combine(step.opcode, stack[-1], right)
            else:
                stack.append(self._leaf(step, values))
        return stack[0]

    def spec(self) -> tuple[str, list[tuple[int, int, int]]]:
        """What the native library takes."""
        return self.text, [(int(opcode), index, value) for opcode, index, value in self.program]

    def _leaf(self, step: Instruction, values: Sequence[Any]) -> Any:
        if step.opcode is Opcode.CONSTANT:
            return step.value
        given = values[step.argument]
        if step.opcode is Opcode.HAS:
            return int(given is not None)
        if given is None:
            return 0
        if step.opcode is Opcode.ARGUMENT:
            return int(given) if isinstance(given, bool) else given
        if step.opcode is Opcode.LENGTH:
            return len(given)
        if step.opcode is Opcode.NUMEL:
            return math.prod(given.shape)
        rank = len(given.shape)
        if step.opcode is Opcode.NDIM:
            return rank
        if not -rank <= step.value < rank:
            needed = -step.value if step.value < 0 else step.value + 1
            shape = ", ".join(map(str, given.shape))
            raise ContractError(
                f"{self.names[step.argument]} must have at least {needed} dimensions for "
                f"'{self.text}', got shape [{shape}]"
            )
        return (given.shape if step.opcode is Opcode.SIZE else strides_of(given))[step.value]

    def _combine(self, opcode: Opcode, left: Any, right: Any) -> Any:
        divides = opcode in (Opcode.FLOOR_DIVIDE, Opcode.MODULO)
        if divides and isinstance(right, int) and right == 0:
            raise ContractError(f"'{self.text}' divides by zero")
        result = _OPERATORS[opcode](left, right)
        if isinstance(result, int) and not -(2**63) <= result < 2**63:
            raise ContractError(f"'{self.text}' does not fit into 64 bits")
        return result


class _Argument(Protocol):
    """What the parser asks of an argument; those of schemas and of jit's signatures have it."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def optional(self) -> bool: ...


def parse_expression(
    value: int | str,
    arguments: Sequence[_Argument],
    where: str,
    *,
    none_is_zero: bool = False,
    condition: bool = False,
) -> Expression:
    """Turns an int or a text into an expression.

    Args:
        value: the integer, or the text in either spelling.
        arguments: what it may name.
        where: what errors start with.
        none_is_zero: whether arguments that may be None can be named.
        condition: whether it has to be true or false.

    Raises:
        SchemaError: it cannot be read, or names what is not there.
    """
    text = str(value).strip()
    reader = ExpressionReader(text, arguments, where, none_is_zero=none_is_zero)
    tree = reader.tree(text)
    if condition and not reader.is_condition(tree):
        raise reader.error("is not true or false: compare something, as in 'size(a,1) >= 4096'")
    program = tuple(reader.visit(tree))
    depth = deepest = 0
    for step in program:
        depth += step.growth
        deepest = max(deepest, depth)
    if deepest > _MAX_DEPTH:
        raise reader.error(f"is nested deeper than {_MAX_DEPTH} levels")
    return Expression(text, program, tuple(argument.name for argument in arguments))


class ExpressionReader:
    """Reads a text into programs; every refusal goes through `error`."""

    def __init__(
        self, text: str, arguments: Sequence[_Argument], where: str, *, none_is_zero: bool = False
    ) -> None:
        self._text = text
        self._arguments = arguments
        self._where = where
        self._none_is_zero = none_is_zero

    def error(self, reason: str) -> SchemaError:
        """What is wrong with the text."""
        return SchemaError(f"{self._where}: '{self._text}': {reason}; {_GRAMMAR}")

    def tree(self, text: str) -> ast.expr:
        """The syntax tree of a part of the text. Raises `SchemaError` when there is none."""
        try:
            return ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = getattr(error, "msg", None) or str(error)
            raise self.error(f"it cannot be read ({reason})") from error

    def is_condition(self, node: ast.expr) -> bool:
        """Whether it is true or false."""
        is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        return is_not or isinstance(node, (ast.Compare, ast.BoolOp))

    def argument(self, node: ast.expr, *types: str) -> int:
        """The index of the named argument, which has one of these types."""
        index = self._index(node)
        argument = self._arguments[index]
        if argument.type not in types:
            raise self.error(f"'{argument.name}' is {argument.type}, expected {' or '.join(types)}")
        if argument.optional and not self._none_is_zero:
            raise self.error(f"'{argument.name}' may be None and has no size then")
        return index

    def _index(self, node: ast.expr) -> int:
        names = [argument.name for argument in self._arguments]
        if not isinstance(node, ast.Name):
            raise self.error(f"'{ast.unparse(node)}' is not an argument")
        if node.id not in names:
            known = ", ".join(names)
            raise self.error(f"there is no argument '{node.id}' (the arguments are {known})")
        return names.index(node.id)

    def integer(self, node: ast.expr) -> int:
        """The value of a literal."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.integer(node.operand)
        if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 2**62:
            return node.value
        raise self.error(f"'{ast.unparse(node)}' is not an integer of 63 bits")

    def visit(self, node: ast.expr) -> list[Instruction]:
        """The program of a tree."""
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            combine = Instruction(_BINARY[type(node.op)])
            return [*self.visit(node.left), *self.visit(node.right), combine]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            zero = Instruction(Opcode.CONSTANT)
            return [zero, *self.visit(node.operand), Instruction(Opcode.SUBTRACT)]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return [*self.visit(node.operand), _NOT]
        if isinstance(node, ast.BoolOp):
            return self._bool_op(node)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        return [self._leaf(node)]

    def _bool_op(self, node: ast.BoolOp) -> list[Instruction]:
        combine = Instruction(Opcode.AND if isinstance(node.op, ast.And) else Opcode.OR)
        program = self.visit(node.values[0])
        for value in node.values[1:]:
            program += [*self.visit(value), combine]
        return program

    def _compare(self, node: ast.Compare) -> list[Instruction]:
        program: list[Instruction] = []
        for number, (left, op, right) in enumerate(
            zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
        ):
            if type(op) not in _COMPARISONS:
                raise self._unknown(node)
            opcode, swapped, negated = _COMPARISONS[type(op)]
            sides = (right, left) if swapped else (left, right)
            program += [*self.visit(sides[0]), *self.visit(sides[1]), Instruction(opcode)]
            program += [_NOT] * negated
            program += [Instruction(Opcode.AND)] * (number > 0)
        return program

    def _leaf(self, node: ast.expr) -> Instruction:
        if isinstance(node, ast.Constant):
            return Instruction(Opcode.CONSTANT, value=self.integer(node))
        if isinstance(node, ast.Name):
            return Instruction(Opcode.ARGUMENT, self.argument(node, "int", "bool"))
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            if node.value.attr == "shape":
                tensor = self.argument(node.value.value, "Tensor")
                return Instruction(Opcode.SIZE, tensor, self.integer(node.slice))
        elif isinstance(node, ast.Call) and not node.keywords:
            return self._call(node)
        raise self._unknown(node)

    def _call(self, node: ast.Call) -> Instruction:
        """`numel(x)` and `x.numel()` are the same: a method's tensor comes first."""
        function, given = node.func, node.args
        if isinstance(function, ast.Attribute):
            name, given = function.attr, [function.value, *given]
            known = name not in {"len", "ndim", "has"}
        else:
            name = function.id if isinstance(function, ast.Name) else ""
            known = name != "dim"
        if not known or name not in _READS:
            raise self._unknown(node)
        opcode, dimension = _READS[name]
        if len(given) != 1 + dimension:
            raise self._unknown(node)
        if opcode is Opcode.HAS:
            return Instruction(opcode, self._index(given[0]))
        index = self.argument(given[0], *(_LISTS if opcode is Opcode.LENGTH else ("Tensor",)))
        return Instruction(opcode, index, self.integer(given[1]) if dimension else 0)

    def _unknown(self, node: ast.expr) -> SchemaError:
        return self.error(f"'{ast.unparse(node)}' is not known")
