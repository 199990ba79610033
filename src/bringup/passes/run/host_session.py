"""Sessions of Python passes on graphs of C++ programs, which the engine opens and closes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from bringup import ir, settings
from bringup.errors import PassError, PassFatalError
from bringup.passes.engine import GraphCore, HostOperators, PassRegistration, native
from bringup.passes.registry.registry import descriptors_of
from bringup.passes.run.controls import Controls
from bringup.passes.run.host_dialect import HostDialect
from bringup.passes.run.session import Session

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
