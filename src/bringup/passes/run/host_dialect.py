"""What operators are in the graph of a C++ program: its providers say it, through the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bringup import ir
from bringup.errors import PassError, SchemaError
from bringup.passes.engine import HostOperators


class HostDialect(ir.Dialect):
    """The dialect of one session over the graph of a C++ program.

    What its providers do not answer is open: without schemas an operator is what it is called,
    with as many outputs as asked for, and without shape inference the outputs are unknown.
    """

    has_symbolic_arguments = True

    def __init__(self, operators: HostOperators) -> None:
        self._operators = operators

    @property
    def name(self) -> str:
        return "host"

    def bind(
        self, op_type: str, arguments: Sequence[object], keywords: Mapping[str, object]
    ) -> tuple[ir.Operator, tuple[object, ...]]:
        if not self._operators.has_schemas:
            if keywords:
                raise SchemaError(
                    f"{op_type}: the program gave its graph no schemas, so arguments have no "
                    f"names: pass {', '.join(map(repr, keywords))} by position"
                )
            return ir.Operator(op_type, output_count=1), tuple(arguments)
        operator, bound = self._ask(op_type, arguments)
        if not keywords:
            return operator, bound
        named = list(bound)
        for name, argument in keywords.items():
            index = operator.index_of(name)
            named.extend([None] * (index + 1 - len(named)))
            named[index] = argument
        return self._ask(op_type, named)

    def _ask(
        self, op_type: str, arguments: Sequence[object]
    ) -> tuple[ir.Operator, tuple[object, ...]]:
        try:
            return self._operators.bind(op_type, tuple(arguments))
        except SchemaError as error:
            raise SchemaError(f"{op_type}: {error}") from error

    def infer(self, node: ir.Node, instead_of: ir.Value | None = None) -> tuple[object, ...]:
        """As the program's shape inference says; None where it has none."""
        count = node.operator.output_count
        if count is None:
            raise PassError(f"how many outputs {node.op_type} has depends on the call")
        if not self._operators.has_shapes:
            return (None,) * count
        return self._operators.infer(node.operator, node.arguments, count)

    def difference(self, old: object, new: object) -> str | None:
        """Shape, dtype and device, where both are known."""
        former, current = self.describe(old), self.describe(new)
        if former is None or current is None:
            return None
        for what, was, now in (
            ("shape", former.shape, current.shape),
            ("dtype", former.dtype, current.dtype),
            ("device", former.device, current.device),
        ):
            same = was.same_as(now) if isinstance(was, ir.Shape) else was == now  # type: ignore[arg-type]
            if not same:
                return f"{what} is {now} where it was {was}"
        return None

    def evaluate(self, node: ir.Node, constants: Mapping[ir.Value, object]) -> tuple[object, ...]:
        """Never: the engine folds such graphs itself."""
        raise PassError(f"{node.op_type} is evaluated by the program, not in Python")

    def can_fold(self, node: ir.Node) -> bool:
        """Return False: the engine folds such graphs itself."""
        return False

    def constant_meta(self, payload: object) -> object:
        if not isinstance(payload, ir.ConstantData):
            raise TypeError(
                f"a constant of a C++ program's graph is an ir.ConstantData, got {payload!r}"
            )
        return ir.TensorDesc(ir.Shape(payload.shape), payload.dtype)

    def supports(self, node: ir.Node) -> tuple[bool, str]:
        count = node.operator.output_count
        if not self._operators.has_support or count is None:
            return True, ""
        why = self._operators.refusal(node.operator, node.arguments, count)
        return why is None, why or ""
