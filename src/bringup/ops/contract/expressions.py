"""Items of a shape: an expression of the language, or a slice of sizes."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bringup._language.expression import Expression
from bringup._language.reader import ExpressionReader, parse_expression
from bringup._native import torch_library
from bringup.ops.schema.schema import SchemaArgument

_SLICE_END = 2**63 - 1


@dataclass(frozen=True)
class Dimension:
    """An item of a shape: an expression, or a slice of the sizes or int[] of `sliced` (or -1)."""

    size: Expression
    sliced: int = -1
    start: int = 0
    stop: int = 0

    def evaluate(self, values: Sequence[Any], arguments: Sequence[SchemaArgument]) -> list[Any]:
        if self.sliced < 0:
            return [self.size.evaluate(values)]
        source = values[self.sliced]
        sizes = source.shape if arguments[self.sliced].type == "Tensor" else source
        return list(sizes[self.start : self.stop])

    def native(self) -> Any:
        return torch_library().ops.Dimension(
            size=self.size.native(), sliced=self.sliced, start=self.start, stop=self.stop
        )


def shape_text(shape: Sequence[Any]) -> str:
    """`[2, 3]`, as the native library prints sizes."""
    return "[" + ", ".join(str(size) for size in shape) + "]"


def parse_dimension(value: int | str, arguments: Sequence[SchemaArgument], where: str) -> Dimension:
    """Return an expression, or `*x.shape[a:b]`, `*x.shape`, `*sizes`; or raise `SchemaError`."""
    text = str(value).strip()
    if not text.startswith("*"):
        return Dimension(parse_expression(value, arguments, where))
    reader = ExpressionReader(text, arguments, where)
    tree = reader.tree(text[1:].strip())
    start, stop = 0, _SLICE_END
    if isinstance(tree, ast.Subscript) and isinstance(tree.slice, ast.Slice):
        if tree.slice.lower is not None:
            start = reader.integer(tree.slice.lower)
        if tree.slice.upper is not None:
            stop = reader.integer(tree.slice.upper)
        if tree.slice.step is not None:
            raise reader.error("a slice of sizes has no step")
        tree = tree.value
    if isinstance(tree, ast.Attribute) and tree.attr == "shape":
        sliced = reader.argument(tree.value, "Tensor")
    else:
        sliced = reader.argument(tree, "int[]")
    return Dimension(Expression(text, ()), sliced, start, stop)
