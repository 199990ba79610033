"""Running passes over a graph and its subgraphs, and what is raised in the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from bringup import ir, settings
from bringup.errors import PassError, PassFatalError, WrongRewriteError
from bringup.ir.edits import Committer
from bringup.ir.inference import needs_shapes
from bringup.passes.engine import native
from bringup.passes.registry.descriptor import PassDescriptor
from bringup.passes.report import PassReport, PassStatus
from bringup.passes.run.controls import Controls
from bringup.passes.run.events import is_wanted
from bringup.passes.run.folding import fold_constants
from bringup.passes.run.session import Session, result_of

_LOG = settings.logger("passes")


def run_passes(
    graph: ir.Graph,
    selected: Sequence[PassDescriptor],
    *,
    options: Mapping[str, object] | None = None,
    commit: Committer | None = None,
    fold: bool = False,
) -> PassReport:
    """Run passes over `graph` and its subgraphs, stage by stage, and return what each did.

    A pass that fails leaves no edit; the others of its stage still run, then `PassError` is raised
    for the stage (at once for `PassFatalError`), unless its `on_error` is "skip" or "rollback". The
    error's `report` has all results, its `status` is that of the first failure.

    Args:
        graph: edited in place.
        selected: the passes, in running order.
        options: what passes may read with `context.get_option_value`. `verify` runs every rewrite
            against what it replaces, `dump_passes` names a folder for the graphs before and after.
        commit: called with the edits of every pass that succeeded.
        fold: whether operators on constants are computed once, before the last stage.
    """
    run = Run(graph, options or {}, commit, fold)
    with _not_within_itself(selected, run.report):
        native.run_passes(run, selected)
    if run.failures:
        raise _combined(run.report, run.failures)
    return run.report


_SELECTED: ContextVar[frozenset[str]] = ContextVar("bringup_running_passes", default=frozenset())


@contextmanager
def _not_within_itself(selected: Sequence[PassDescriptor], report: PassReport) -> Iterator[None]:
    """Refuse a pass that runs passes among which it is: that would have no end."""
    names = frozenset(item.pass_name for item in selected)
    again = sorted(_SELECTED.get() & names)
    if again:
        error = PassError(
            f"a hook runs passes over a graph while {again} run, and they are among them: name "
            "others (passes=[...])"
        )
        error.report = report
        raise error
    token = _SELECTED.set(_SELECTED.get() | names)
    try:
        yield
    finally:
        _SELECTED.reset(token)


class Run:
    """The steps of one `run_passes`, whose flow the engine has (native/engine/run/executor.cpp)."""

    def __init__(
        self, graph: ir.Graph, options: Mapping[str, object], commit: Committer | None, fold: bool
    ) -> None:
        self.report = PassReport(graph.name)
        self.failures: list[Exception] = []
        self._graph = graph
        self._options = options
        self._controls = Controls.of(options)
        self._has_listeners = is_wanted() and not self._controls.quiet
        self._commit = commit
        self._fold = fold
        self._session: Session | None = None

    def graphs(self) -> list[ir.Graph]:
        """Return the graph, then its subgraphs at any depth that a node still calls."""
        return list(_with_subgraphs(self._graph))

    def open(self, graph: ir.Graph, descriptor: PassDescriptor) -> Session:
        commit = self._commit if graph is self._graph else None
        given = graph, descriptor, self._options, self._controls, commit
        self._session = Session(*given, has_listeners=self._has_listeners)
        return self._session

    def report_result(self, facts: dict[str, Any], graph: ir.Graph) -> None:
        """Take a result: of the session that was opened last, or of a pass that did not run."""
        result = result_of(facts, graph)
        self.report.results.append(result)
        session, self._session = self._session, None
        if session is None:
            return
        session.finish(result)
        if result.failures:
            miss = next((item for item in result.near_misses if "failed: " in item.reason), None)
            _LOG.warning(
                "pass %r failed at %d matches, which were left alone%s",
                result.name,
                result.failures,
                f": {miss}" if miss is not None else "",
            )
        if result.tolerated:
            _LOG.warning("pass %r failed and was undone: %s", result.name, result.message)
        elif result.status is PassStatus.FAILED:
            assert session.error is not None, "a failure was described"
            self.failures.append(session.error)

    def infer_shapes(self) -> None:
        """Describe graphs that do not have their shapes yet, between the first two stages."""
        for graph in self.graphs():
            if not needs_shapes(graph):
                continue
            try:
                ir.infer_shapes(graph)
            except PassError as error:
                error.report = self.report
                raise

    def fold(self) -> None:
        """Compute once what depends on constants only, before the last stage."""
        if not self._fold:
            return
        for graph in reversed(self.graphs()):  # what is called before what calls it
            with graph.transaction("fold_constants") as edits:
                self.report.folded += fold_constants(graph)
                if self._commit is not None and graph is self._graph:
                    self._commit(edits)


def _with_subgraphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """Return the graph, then its subgraphs at any depth that a node still calls."""
    yield graph
    for subgraph in graph.get_all_subgraphs():
        if subgraph.get_parent_node() is not None:
            yield from _with_subgraphs(subgraph)


def _combined(report: PassReport, failures: list[Exception]) -> PassError:
    failed = [
        result
        for result in report.results
        if result.status is PassStatus.FAILED and not result.tolerated
    ]
    text = "; ".join(f"pass {result.name!r} failed: {result.message}" for result in failed)
    kind: type[PassError] = PassError
    for outranking in (PassFatalError, WrongRewriteError):
        if any(isinstance(error, outranking) for error in failures):
            kind = outranking
    combined = kind(f"{text}. Its edits were undone.", status=failed[0].code)
    combined.report = report
    combined.__cause__ = failures[0]
    return combined
