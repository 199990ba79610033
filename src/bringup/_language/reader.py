"""Reading whole numbers over a kernel's arguments: `x.shape[0] // 2` or `size(x,0) // 2`."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Protocol

from bringup._language.expression import Expression, Instruction, Opcode
from bringup.errors import SchemaError

_MAX_DEPTH = 16  # kMaxDepth of native/runtime/expression.cpp
_MAX_LEVELS = 100
"""Of a text: what is nested deeper might exceed Python's recursion limit."""
_GRAMMAR = (
    "an expression is made of integers, int and bool arguments, x.shape[i] or size(x,i), "
    "x.stride(i) or stride(x,i), size(x,i,n) and stride(x,i,n) where a tensor without dimension i "
    "has n, x.numel() or numel(x), x.dim() or ndim(x), len(list), list[i], has(x), "
    "+ - * // %, min(), comparisons, and, or, not and ()"
)
_BINARY: Mapping[type[ast.operator], Opcode] = {
    ast.Add: Opcode.ADD, ast.Sub: Opcode.SUBTRACT, ast.Mult: Opcode.MULTIPLY,
    ast.FloorDiv: Opcode.FLOOR_DIVIDE, ast.Mod: Opcode.MODULO,
}  # fmt: skip
# Each comparison by LESS and EQUAL: the opcode, whether the sides change places, whether the
# answer is turned around.
_COMPARISONS: Mapping[type[ast.cmpop], tuple[Opcode, bool, bool]] = {
    ast.Lt: (Opcode.LESS, False, False), ast.Gt: (Opcode.LESS, True, False),
    ast.GtE: (Opcode.LESS, False, True), ast.LtE: (Opcode.LESS, True, True),
    ast.Eq: (Opcode.EQUAL, False, False), ast.NotEq: (Opcode.EQUAL, False, True),
}  # fmt: skip
# Names of functions and methods: the opcode, and whether a dimension is named.
_READS: Mapping[str, tuple[Opcode, bool]] = {
    "size": (Opcode.SIZE, True), "stride": (Opcode.STRIDE, True), "numel": (Opcode.NUMEL, False),
    "ndim": (Opcode.NDIM, False), "dim": (Opcode.NDIM, False), "len": (Opcode.LENGTH, False),
    "has": (Opcode.HAS, False), "dtype": (Opcode.DTYPE, False),
    "dtype_code": (Opcode.DTYPE_CODE, False), "dtype_bits": (Opcode.DTYPE_BITS, False),
}  # fmt: skip
_ALONG = {Opcode.SIZE: Opcode.SIZE_ALONG, Opcode.STRIDE: Opcode.STRIDE_ALONG}
_DEFAULTED = {Opcode.SIZE: Opcode.SIZE_OR, Opcode.STRIDE: Opcode.STRIDE_OR}
_METHODS = ("size", "stride", "numel", "dim")
_TENSORS = ("Tensor[]", "Tensor?[]")
_LISTS = ("int[]", "float[]", "bool[]", *_TENSORS)
_NOT = Instruction(Opcode.NOT)


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
    """Turn an int or a text over `arguments` into an expression. Raises `SchemaError` after
    `where`. With `none_is_zero` it may name optional ones; a `condition` is true or false.
    """
    text = str(value).strip()
    reader = ExpressionReader(text, arguments, where, none_is_zero=none_is_zero)
    tree = reader.tree(text)
    if condition and not reader.is_condition(tree):
        raise reader.error("is not true or false: compare something, as in 'size(a,1) >= 4096'")
    program = tuple(reader.visit(tree))
    reader.check_depth(program)
    return Expression(text, program, tuple(argument.name for argument in arguments))


class ExpressionReader:
    """Reads a text into programs; every refusal goes through `error`."""

    grammar = _GRAMMAR

    def __init__(
        self, text: str, arguments: Sequence[_Argument], where: str, *, none_is_zero: bool = False
    ) -> None:
        self.text = text
        self.arguments = arguments
        self._where = where
        self._none_is_zero = none_is_zero

    def error(self, reason: str) -> ValueError:
        return SchemaError(f"{self._where}: '{self.text}': {reason}")

    def tree(self, text: str) -> ast.expr:
        """Return the syntax tree of a part of the text. Raises what `error` gives."""
        try:
            tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = getattr(error, "msg", None) or str(error)
            raise self.error(f"it cannot be read ({reason}); {self.grammar}") from error
        levels, found = 0, [tree]
        while found:
            levels += 1
            found = [c for n in found for c in ast.iter_child_nodes(n) if isinstance(c, ast.expr)]
        if levels > _MAX_LEVELS:
            raise self.error("it is nested too deeply to be read")
        return tree

    def check_depth(self, program: Sequence[Instruction]) -> None:
        """Raise what `error` gives for a program that needs too large a stack."""
        depth = deepest = 0
        for step in program:
            depth += step.growth
            deepest = max(deepest, depth)
        if deepest > _MAX_DEPTH:
            raise self.error(f"is nested deeper than {_MAX_DEPTH} levels")

    def is_condition(self, node: ast.expr) -> bool:
        is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        return is_not or isinstance(node, (ast.Compare, ast.BoolOp))

    def argument(self, node: ast.expr, *types: str) -> int:
        """Return the index of the named argument, which has one of these types."""
        index = self.index(node)
        argument = self.arguments[index]
        if types and argument.type not in types:
            raise self.error(f"{argument.name} is {argument.type}, expected {' or '.join(types)}")
        if argument.optional and not self._none_is_zero:
            raise self.error(f"'{argument.name}' may be None and has no size then")
        return index

    def index(self, node: ast.expr) -> int:
        names = [argument.name for argument in self.arguments]
        if not isinstance(node, ast.Name):
            raise self.error(f"'{ast.unparse(node)}' is not an argument; {self.grammar}")
        if node.id not in names:
            known = ", ".join(names)
            raise self.error(f"there is no argument '{node.id}' (the arguments are {known})")
        return names.index(node.id)

    def integer(self, node: ast.expr) -> int:
        negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        literal = node.operand if isinstance(node, ast.UnaryOp) and negative else node
        if isinstance(literal, ast.Constant) and type(literal.value) is int:
            value = -literal.value if negative else literal.value
            if -(2**63) <= value < 2**63:
                return value
        raise self.error(f"'{ast.unparse(node)}' is not an integer of 64 bits")

    def visit(self, node: ast.expr) -> list[Instruction]:
        if isinstance(node, ast.BinOp):
            if type(node.op) not in _BINARY:
                raise self.error("whole numbers are combined with + - * // and %")
            combine = Instruction(_BINARY[type(node.op)])
            return [*self.visit(node.left), *self.visit(node.right), combine]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            if isinstance(node.operand, ast.Constant):
                return [Instruction(Opcode.CONSTANT, value=self.integer(node))]
            zero = Instruction(Opcode.CONSTANT)
            return [zero, *self.visit(node.operand), Instruction(Opcode.SUBTRACT)]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return [*self.visit(node.operand), _NOT]
        if isinstance(node, ast.BoolOp):
            return self._bool_op(node)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.Call) and not node.keywords:
            return self._call(node)
        return [self.leaf(node)]

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
                raise self.unknown(node)
            opcode, swapped, negated = _COMPARISONS[type(op)]
            sides = (right, left) if swapped else (left, right)
            program += [*self.visit(sides[0]), *self.visit(sides[1]), Instruction(opcode)]
            program += [_NOT] * negated
            program += [Instruction(Opcode.AND)] * (number > 0)
        return program

    def leaf(self, node: ast.expr) -> Instruction:
        """Return the instruction of a tree that stands for itself."""
        if isinstance(node, ast.Constant):
            return Instruction(Opcode.CONSTANT, value=self.integer(node))
        if isinstance(node, ast.Name):
            return Instruction(Opcode.INT, self.argument(node, "int", "bool"))
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            if node.value.attr == "shape":
                tensor = self.argument(node.value.value, "Tensor")
                return Instruction(Opcode.SIZE, tensor, self._dimension(node.slice))
        elif isinstance(node, ast.Subscript):
            values = self.argument(node.value, "int[]", "bool[]", "Generator")
            return Instruction(Opcode.ELEMENT, values, self.number_of(node.slice))
        raise self.unknown(node)

    def _call(self, node: ast.Call) -> list[Instruction]:
        """`numel(x)` and `x.numel()` are the same: a method's tensor comes first."""
        function, given = node.func, node.args
        if isinstance(function, ast.Attribute):
            name, given = function.attr, [function.value, *given]
            known = name in _METHODS
        else:
            name = function.id if isinstance(function, ast.Name) else ""
            known = name != "dim"
        if name == "min" and len(given) > 1:
            return self._minimum(given)
        if not known or name not in _READS:
            raise self.unknown(node)
        opcode, dimension = _READS[name]
        if dimension and len(given) == 3:
            return self._dimension_or(opcode, *given)
        return [self._read(name, opcode, dimension, given)]

    def _minimum(self, given: Sequence[ast.expr]) -> list[Instruction]:
        program = self.visit(given[0])
        for value in given[1:]:
            program += [*self.visit(value), Instruction(Opcode.MINIMUM)]
        return program

    def _dimension_or(
        self, opcode: Opcode, tensor: ast.expr, dimension: ast.expr, otherwise: ast.expr
    ) -> list[Instruction]:
        item = -1
        if isinstance(tensor, ast.Subscript):
            index, item = self.argument(tensor.value, *_TENSORS), self.number_of(tensor.slice)
        else:
            index = self.argument(tensor, "Tensor")
        named = item << 32 | self._dimension(dimension) & 0xFFFFFFFF
        return [*self.visit(otherwise), Instruction(_DEFAULTED[opcode], index, named)]

    def _read(
        self, name: str, opcode: Opcode, dimension: bool, given: Sequence[ast.expr]
    ) -> Instruction:
        if len(given) != 1 + dimension:
            tensor = ast.unparse(given[0]) if given else "x"
            needed = "names a dimension, as in" if dimension else "takes no dimension:"
            shown = f"{name}({tensor},0)" if dimension else f"{name}({tensor})"
            raise self.error(f"{name} {needed} {shown}")
        if opcode is Opcode.HAS:
            return Instruction(opcode, self.index(given[0]))
        if opcode is Opcode.NUMEL and isinstance(given[0], ast.Subscript):
            items = self.argument(given[0].value, *_TENSORS)
            return Instruction(Opcode.ITEM_NUMEL, items, self.number_of(given[0].slice))
        if opcode in _ALONG and isinstance(given[1], ast.Name):
            named = self.argument(given[1], "int")
            return Instruction(_ALONG[opcode], self.argument(given[0], "Tensor"), named)
        index = self.argument(given[0], *(_LISTS if opcode is Opcode.LENGTH else ("Tensor",)))
        return Instruction(opcode, index, self._dimension(given[1]) if dimension else 0)

    def number_of(self, node: ast.expr) -> int:
        """Return which element of a list a literal names."""
        number = self.integer(node)
        if not 0 <= number < 2**31:
            raise self.error(f"a list has no element {number}: they are counted from 0")
        return number

    def _dimension(self, node: ast.expr) -> int:
        dimension = self.integer(node)
        if abs(dimension) >= 2**31:
            raise self.error(f"there is no dimension {dimension}")
        return dimension

    def unknown(self, node: ast.expr) -> ValueError:
        return self.error(f"'{ast.unparse(node)}' is not known; {self.grammar}")
