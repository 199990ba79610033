"""Bucket predicates: `"size(a,1) >= 4096"` as a postfix program of integers.

The same program is run by native/torch/ops/rules.cpp when an operator is called, and here for
`jit.params`. Owns the opcodes, which output rules share.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from bringup.jit.language.signature import Argument, strides_of

__all__ = ["MAX_DEPTH", "Instruction", "Opcode", "Predicate", "parse_predicate"]

MAX_DEPTH = 16  # kMaxDepth of rules.cpp
_GRAMMAR = (
    "a predicate is made of size(x,i), stride(x,i), numel(x), ndim(x), int arguments, integers, "
    "+ - * // %, comparisons, and, or, not"
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


_LEAVES = frozenset(
    (
        Opcode.CONSTANT,
        Opcode.ARGUMENT,
        Opcode.SIZE,
        Opcode.NUMEL,
        Opcode.LENGTH,
        Opcode.STRIDE,
        Opcode.NDIM,
    )
)


class Instruction(NamedTuple):
    """One step: an opcode with the argument's index and a constant, where it has them."""

    opcode: Opcode
    argument: int = -1
    value: int = 0

    @property
    def growth(self) -> int:
        """By how much it makes the stack deeper."""
        if self.opcode in _LEAVES:
            return 1
        return 0 if self.opcode is Opcode.NOT else -1


def depth_of(program: Sequence[Instruction]) -> int:
    """How deep the stack of a program gets."""
    depth = deepest = 0
    for step in program:
        depth += step.growth
        deepest = max(deepest, depth)
    return deepest


_BINARY: dict[type[ast.operator], Opcode] = {
    ast.Add: Opcode.ADD,
    ast.Sub: Opcode.SUBTRACT,
    ast.Mult: Opcode.MULTIPLY,
    ast.FloorDiv: Opcode.FLOOR_DIVIDE,
    ast.Mod: Opcode.MODULO,
}
# Each comparison by LESS and EQUAL: the opcode, whether the sides change places, whether the
# answer is turned around.
_COMPARISONS: dict[type[ast.cmpop], tuple[Opcode, bool, bool]] = {
    ast.Lt: (Opcode.LESS, False, False),
    ast.Gt: (Opcode.LESS, True, False),
    ast.GtE: (Opcode.LESS, False, True),
    ast.LtE: (Opcode.LESS, True, True),
    ast.Eq: (Opcode.EQUAL, False, False),
    ast.NotEq: (Opcode.EQUAL, False, True),
}
_DIMENSIONS = {"size": Opcode.SIZE, "stride": Opcode.STRIDE}
_WHOLE = {"numel": Opcode.NUMEL, "ndim": Opcode.NDIM}
_NOT = Instruction(Opcode.NOT)


@dataclass(frozen=True)
class Predicate:
    """A declared bucket: what the user wrote, and its program."""

    text: str
    program: tuple[Instruction, ...]

    def holds(self, values: Sequence[Any]) -> bool:
        """Whether it is true of these arguments, in the signature's order; of None, every number is
        0. Raises `ValueError` for a dimension that a tensor has not and for a division by zero.
        """
        stack: list[int] = []
        for step in self.program:
            if step.opcode in _LEAVES:
                stack.append(self._leaf(step, values))
            elif step.opcode is Opcode.NOT:
                stack[-1] = int(not stack[-1])
            else:
                right = stack.pop()
                stack[-1] = self._combine(step.opcode, stack[-1], right)
        return bool(stack[0])

    def _leaf(self, step: Instruction, values: Sequence[Any]) -> int:
        if step.opcode is Opcode.CONSTANT:
            return step.value
        given = values[step.argument]
        if given is None:
            return 0
        if step.opcode is Opcode.ARGUMENT:
            return int(given)
        if step.opcode is Opcode.NUMEL:
            return math.prod(given.shape)
        if step.opcode is Opcode.NDIM:
            return len(given.shape)
        sizes = given.shape if step.opcode is Opcode.SIZE else strides_of(given)
        if not -len(sizes) <= step.value < len(sizes):
            raise ValueError(
                f"'{self.text}': a tensor of {len(sizes)} dimensions lacks number {step.value}"
            )
        return int(sizes[step.value])

    def _combine(self, opcode: Opcode, left: int, right: int) -> int:
        if opcode in {Opcode.FLOOR_DIVIDE, Opcode.MODULO} and right == 0:
            raise ValueError(f"'{self.text}' divides by zero")
        return int(_OPERATIONS[opcode](left, right))


_OPERATIONS: dict[Opcode, Any] = {
    Opcode.ADD: lambda a, b: a + b,
    Opcode.SUBTRACT: lambda a, b: a - b,
    Opcode.MULTIPLY: lambda a, b: a * b,
    Opcode.FLOOR_DIVIDE: lambda a, b: a // b,
    Opcode.MODULO: lambda a, b: a % b,
    Opcode.LESS: lambda a, b: a < b,
    Opcode.EQUAL: lambda a, b: a == b,
    Opcode.AND: lambda a, b: bool(a) and bool(b),
    Opcode.OR: lambda a, b: bool(a) or bool(b),
}


def parse_predicate(text: str, signature: Sequence[Argument], where: str) -> Predicate:
    """The predicate that a text says. `ValueError` starting with `where` when it says none."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{where}: {text!r} cannot be read ({error.msg}); {_GRAMMAR}") from error
    compiler = _Compiler(text, signature, where)
    if not isinstance(tree, (ast.Compare, ast.BoolOp)) and not compiler.is_not(tree):
        raise compiler.error("is not true or false: compare something, as in 'size(a,1) >= 4096'")
    program = tuple(compiler.visit(tree))
    if depth_of(program) > MAX_DEPTH:
        raise compiler.error(f"is nested deeper than {MAX_DEPTH} levels")
    return Predicate(text, program)


class _Compiler:
    """Turns a tree into a program."""

    def __init__(self, text: str, signature: Sequence[Argument], where: str) -> None:
        self._text = text
        self._arguments = {a.name: (i, a.type) for i, a in enumerate(signature)}
        self._where = where

    def error(self, what: str) -> ValueError:
        return ValueError(f"{self._where}: {self._text!r} {what}; {_GRAMMAR}")

    @staticmethod
    def is_not(node: ast.expr) -> bool:
        return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)

    def visit(self, node: ast.expr) -> list[Instruction]:
        if isinstance(node, ast.BoolOp):
            return self._bool_op(node)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            combine = Instruction(_BINARY[type(node.op)])
            return [*self.visit(node.left), *self.visit(node.right), combine]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return [*self.visit(node.operand), _NOT]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            zero = Instruction(Opcode.CONSTANT)
            return [zero, *self.visit(node.operand), Instruction(Opcode.SUBTRACT)]
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
                raise self.error(f"has '{ast.unparse(node)}', which is not known")
            opcode, swapped, negated = _COMPARISONS[type(op)]
            sides = (right, left) if swapped else (left, right)
            program += [*self.visit(sides[0]), *self.visit(sides[1]), Instruction(opcode)]
            program += [_NOT] * negated
            program += [Instruction(Opcode.AND)] * (number > 0)
        return program

    def _leaf(self, node: ast.expr) -> Instruction:
        if isinstance(node, ast.Constant):
            return Instruction(Opcode.CONSTANT, value=self._integer(node))
        if isinstance(node, ast.Name):
            return Instruction(Opcode.ARGUMENT, self._argument(node, ("int", "bool")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            function, count = node.func.id, len(node.args)
            if function in _WHOLE and count == 1:
                return Instruction(_WHOLE[function], self._argument(node.args[0], ("Tensor",)))
            if function in _DIMENSIONS and count == 2:
                tensor = self._argument(node.args[0], ("Tensor",))
                return Instruction(_DIMENSIONS[function], tensor, self._integer(node.args[1]))
        raise self.error(f"has '{ast.unparse(node)}', which is not known")

    def _argument(self, node: ast.expr, types: Sequence[str]) -> int:
        name = node.id if isinstance(node, ast.Name) else ""
        if name not in self._arguments:
            known = ", ".join(self._arguments)
            raise self.error(f"names '{ast.unparse(node)}', and the arguments are {known}")
        index, kind = self._arguments[name]
        if kind not in types:
            raise self.error(f"takes '{name}' for {' or '.join(types)}, and it is {kind}")
        return index

    def _integer(self, node: ast.expr) -> int:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._integer(node.operand)
        if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 2**62:
            return node.value
        raise self.error(f"has '{ast.unparse(node)}', which is not an integer of 63 bits")
