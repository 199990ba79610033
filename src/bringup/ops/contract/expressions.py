"""Shape expressions: one small postfix program, written here, run by two interpreters.

`"x.shape[-1] // 2"` becomes a program that native/torch/ops/rules.cpp runs with int64 before a
kernel call, and that `evaluate` runs with ints or SymInts for fake and meta tensors. Does not know
what the numbers are used for.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.errors import ContractError, SchemaError
from bringup.jit.language.predicate import MAX_DEPTH, Instruction, Opcode
from bringup.ops.schema.schema import SchemaArgument

__all__ = [
    "Dimension",
    "Expression",
    "parse_dimension",
    "parse_expression",
]

_SLICE_END = 2**63 - 1
_GRAMMAR = (
    "an expression is made of integers, int arguments, x.shape[i], x.dim(), x.numel(), len(list), "
    "+ - * // % and ()"
)


_BINARY: dict[type[ast.operator], Opcode] = {
    ast.Add: Opcode.ADD,
    ast.Sub: Opcode.SUBTRACT,
    ast.Mult: Opcode.MULTIPLY,
    ast.FloorDiv: Opcode.FLOOR_DIVIDE,
    ast.Mod: Opcode.MODULO,
}
_OPERATORS = {
    Opcode.ADD: operator.add,
    Opcode.SUBTRACT: operator.sub,
    Opcode.MULTIPLY: operator.mul,
}


@dataclass(frozen=True)
class Expression:
    """An integer expression over an operator's arguments: what the user wrote, and its program."""

    text: str
    program: tuple[Instruction, ...]

    def evaluate(self, values: Sequence[Any], arguments: Sequence[SchemaArgument]) -> Any:
        """The value for these arguments (schema order), an int or a SymInt.

        Raises `ContractError` (without the operator's name) for a missing dimension and a division
        by zero.
        """
        stack: list[Any] = []
        for step in self.program:
            if step.opcode is Opcode.CONSTANT:
                stack.append(step.value)
            elif step.opcode is Opcode.ARGUMENT:
                stack.append(values[step.argument])
            elif step.opcode is Opcode.SIZE:
                stack.append(self._size(values[step.argument], step, arguments))
            elif step.opcode is Opcode.NUMEL:
                stack.append(values[step.argument].numel())
            elif step.opcode is Opcode.NDIM:
                stack.append(values[step.argument].dim())
            elif step.opcode is Opcode.LENGTH:
                stack.append(len(values[step.argument]))
            else:
                right = stack.pop()
                stack[-1] = self._combine(step.opcode, stack[-1], right)
        return stack[0]

    def _size(self, tensor: Any, step: Instruction, arguments: Sequence[SchemaArgument]) -> Any:
        rank = tensor.dim()
        if not -rank <= step.value < rank:
            needed = -step.value if step.value < 0 else step.value + 1
            raise ContractError(
                f"{arguments[step.argument].name} must have at least {needed} dimensions "
                f"for '{self.text}', got shape {shape_text(tensor.shape)}"
            )
        return tensor.shape[step.value]

    def _combine(self, opcode: Opcode, left: Any, right: Any) -> Any:
        if opcode not in _OPERATORS:
            if isinstance(right, int) and right == 0:
                raise ContractError(f"'{self.text}' divides by zero")
            return left // right if opcode is Opcode.FLOOR_DIVIDE else left % right
        result = _OPERATORS[opcode](left, right)
        if isinstance(result, int) and not -(2**63) <= result < 2**63:
            raise ContractError(f"'{self.text}' does not fit into 64 bits")
        return result


@dataclass(frozen=True)
class Dimension:
    """One item of a shape: an expression, or a slice of a tensor's sizes or of an int[] argument.

    `sliced` is the argument's index, or -1 where the expression counts.
    """

    size: Expression
    sliced: int = -1
    start: int = 0
    stop: int = 0

    def evaluate(self, values: Sequence[Any], arguments: Sequence[SchemaArgument]) -> list[Any]:
        """The sizes that this item stands for."""
        if self.sliced < 0:
            return [self.size.evaluate(values, arguments)]
        source = values[self.sliced]
        sizes = source.shape if arguments[self.sliced].type == "Tensor" else source
        return list(sizes[self.start : self.stop])


def shape_text(shape: Sequence[Any]) -> str:
    """`[2, 3]`, as the native library prints sizes."""
    return "[" + ", ".join(str(size) for size in shape) + "]"


def parse_expression(
    value: int | str, arguments: Sequence[SchemaArgument], where: str
) -> Expression:
    """Turns an int or a text into an expression. `SchemaError` starting with `where` when it cannot
    be.
    """
    text = str(value)
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise SchemaError(f"{where}: '{text}' cannot be read ({error.msg}); {_GRAMMAR}") from error
    compiler = _Compiler(text, {a.name: (i, a) for i, a in enumerate(arguments)}, where)
    program = compiler.visit(tree)
    if compiler.depth_of(program) > MAX_DEPTH:
        raise SchemaError(f"{where}: '{text}' is nested deeper than {MAX_DEPTH} levels")
    return Expression(text, tuple(program))


def parse_dimension(value: int | str, arguments: Sequence[SchemaArgument], where: str) -> Dimension:
    """The same for an item of a shape: also `*x.shape[a:b]`, `*x.shape` or `*sizes`."""
    text = str(value).strip()
    if not text.startswith("*"):
        return Dimension(parse_expression(value, arguments, where))
    compiler = _Compiler(text, {a.name: (i, a) for i, a in enumerate(arguments)}, where)
    try:
        tree = ast.parse(text[1:].strip(), mode="eval").body
    except SyntaxError as error:
        raise SchemaError(f"{where}: '{text}' cannot be read ({error.msg})") from error
    start, stop = 0, _SLICE_END
    if isinstance(tree, ast.Subscript) and isinstance(tree.slice, ast.Slice):
        start = compiler.bound(tree.slice.lower, start)
        stop = compiler.bound(tree.slice.upper, stop)
        if tree.slice.step is not None:
            raise compiler.error("a slice of sizes has no step")
        tree = tree.value
    if isinstance(tree, ast.Attribute) and tree.attr == "shape":
        sliced = compiler.argument(tree.value, "Tensor")
    else:
        sliced = compiler.argument(tree, "int[]")
    return Dimension(Expression(text, ()), sliced, start, stop)


class _Compiler:
    """Walks one expression's syntax tree; every refusal goes through `error`."""

    def __init__(
        self, text: str, arguments: Mapping[str, tuple[int, SchemaArgument]], where: str
    ) -> None:
        self._text = text
        self._arguments = arguments
        self._where = where

    def error(self, reason: str) -> SchemaError:
        return SchemaError(f"{self._where}: '{self._text}': {reason}; {_GRAMMAR}")

    def argument(self, node: ast.expr, *types: str) -> int:
        if not isinstance(node, ast.Name):
            raise self.error(f"'{ast.unparse(node)}' is not an argument")
        if node.id not in self._arguments:
            known = ", ".join(self._arguments)
            raise self.error(f"there is no argument '{node.id}' (the arguments are {known})")
        index, argument = self._arguments[node.id]
        if argument.type not in types:
            raise self.error(f"'{node.id}' is {argument.type}, expected {' or '.join(types)}")
        if argument.optional:
            raise self.error(f"'{node.id}' may be None and has no size then")
        return index

    def bound(self, node: ast.expr | None, default: int) -> int:
        return default if node is None else self._integer(node)

    def visit(self, node: ast.expr) -> list[Instruction]:
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return [
                *self.visit(node.left),
                *self.visit(node.right),
                Instruction(_BINARY[type(node.op)]),
            ]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            zero = Instruction(Opcode.CONSTANT)
            return [zero, *self.visit(node.operand), Instruction(Opcode.SUBTRACT)]
        return [self._leaf(node)]

    def _leaf(self, node: ast.expr) -> Instruction:
        if isinstance(node, ast.Constant):
            return Instruction(Opcode.CONSTANT, value=self._integer(node))
        if isinstance(node, ast.Name):
            return Instruction(Opcode.ARGUMENT, self.argument(node, "int"))
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            if node.value.attr == "shape":
                tensor = self.argument(node.value.value, "Tensor")
                return Instruction(Opcode.SIZE, tensor, self._integer(node.slice))
        elif isinstance(node, ast.Call) and not node.keywords:
            return self._call(node)
        raise self.error(f"'{ast.unparse(node)}' is not known")

    def _call(self, node: ast.Call) -> Instruction:
        function = node.func
        methods = {"numel": Opcode.NUMEL, "dim": Opcode.NDIM}
        if isinstance(function, ast.Attribute) and function.attr in methods and not node.args:
            return Instruction(methods[function.attr], self.argument(function.value, "Tensor"))
        if isinstance(function, ast.Name) and function.id == "len" and len(node.args) == 1:
            lists = ("int[]", "float[]", "bool[]", "Tensor[]")
            return Instruction(Opcode.LENGTH, self.argument(node.args[0], *lists))
        raise self.error(f"'{ast.unparse(node)}' is not known")

    def _integer(self, node: ast.expr) -> int:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._integer(node.operand)
        if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 2**62:
            return node.value
        raise self.error(f"'{ast.unparse(node)}' is not an integer of 63 bits")

    @staticmethod
    def depth_of(program: list[Instruction]) -> int:
        depth = deepest = 0
        for step in program:
            depth += step.growth
            deepest = max(deepest, depth)
        return deepest
