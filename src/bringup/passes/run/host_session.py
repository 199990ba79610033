"""Sessions of Python passes on graphs of C++ programs, which the engine opens and closes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bringup import ir, settings
from bringup.errors import PassError, PassFatalError, SchemaError
from bringup.passes.engine import GraphCore, HostOperators, PassRegistration, native
from bringup.passes.registry.registry import descriptors_of
from bringup.passes.run.controls import Controls
from bringup.passes.run.session import Session


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


_LOG = settings.logger("passes")
_LIMIT = "time_limit"
_default_limit = 0.0


def use_time_limit(seconds: float) -> None:
    """Limit passes on graphs whose run names no `time_limit` itself; 0: any time."""
    global _default_limit
    _default_limit = seconds


@dataclass(frozen=True)
class HostObject:
    """Stands for an opaque argument of the program: equal where the program's are."""

    number: int


def make_desc(
    sizes: tuple[ir.Dim, ...], dtype: str, strides: tuple[ir.Dim, ...], device: str
) -> ir.TensorDesc:
    return ir.TensorDesc(ir.Shape(sizes), dtype, strides, device)


def make_data(dtype: str, sizes: tuple[int, ...], buffer: object) -> ir.ConstantData:
    """Return the data of a constant, which stay where the program has them."""
    return ir.ConstantData(dtype, sizes, memoryview(buffer))  # type: ignore[arg-type]


make_object = HostObject
make_symbol = ir.SymbolicDim.named


class HostSession(Session):
    """One pass on one graph of a C++ program."""

    watch: TimeLimit | None = None

    def classify_error(self, error: BaseException) -> tuple[int, int, str]:
        """Classify as for any pass; an exit or interrupt fails the run: no program takes it."""
        if not isinstance(error, Exception):
            error = PassFatalError(f"{type(error).__name__}: {error}")
        return super().classify_error(error)

    def commit(self) -> None:
        """Refuse a graph with subgraphs: a program would lose them without a word."""
        added = self.graph.get_all_subgraphs()
        if added:
            raise PassError(
                f"graph {self.graph.name!r} was given the subgraph {added[0].name!r}, which the "
                "graph of a C++ program does not keep"
            )
        super().commit()

    def close(self) -> None:
        if self.watch is not None:
            self.watch.end()
        self.graph.expire()
        context = getattr(self, "_context", None)  # a session that could not begin has none
        if context is not None:
            context.expire()


def open_session(
    core: GraphCore,
    name: str,
    registration: PassRegistration,
    options: Mapping[str, object],
    operators: HostOperators,
) -> HostSession:
    """Open the session of a pass on the graph of this core, on the thread that will run it."""
    (descriptor,) = descriptors_of([registration])
    given = dict(options)
    seconds = given.get(_LIMIT, _default_limit)
    if not isinstance(seconds, (int, float)) or seconds < 0:
        raise ValueError(f"the option {_LIMIT!r} must be a number of seconds, got {seconds!r}")
    graph = ir.Graph.of_core(core, name, HostDialect(operators))
    session = HostSession(graph, descriptor, given, Controls.of(given), None)
    if seconds:
        session.watch = TimeLimit(descriptor.pass_name, float(seconds))
    return session


class TimeLimit:
    """Interrupts a pass that takes too long by an exception between two of Python's instructions.

    A call of C that waits is warned of by name; the exception comes when it returns.
    """

    def __init__(self, name: str, seconds: float) -> None:
        class TimeLimitExceeded(PassFatalError):
            def __init__(self) -> None:
                super().__init__(f"pass {name!r} took longer than its time limit of {seconds:g} s")

        self._error = TimeLimitExceeded
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._is_over = False
        self._name, self._seconds = name, seconds
        self._timer = threading.Timer(seconds, self._interrupt)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """No interrupt comes after this."""
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            native.interrupt_thread(self._thread, None)

    def _interrupt(self) -> None:
        with self._lock:
            if self._is_over:
                return
            _LOG.warning(
                "pass %r exceeds its time limit of %g s: interrupting it", self._name, self._seconds
            )
            native.interrupt_thread(self._thread, self._error)
