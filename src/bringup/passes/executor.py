"""Running passes over a graph: stages, subgraphs, policies, and what is raised in the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bringup import ir, settings
from bringup.errors import PassError, PassFatalError, WrongRewriteError
from bringup.passes.controls import Controls
from bringup.passes.descriptor import ErrorPolicy, PassDescriptor
from bringup.passes.folding import fold_constants
from bringup.passes.report import PassResult, PassStatus, Report
from bringup.passes.session import Session
from bringup.passes.stages import PassStage

__all__ = ["run_passes"]

_LOG = settings.logger("passes")


def run_passes(
    graph: ir.Graph,
    selected: Sequence[PassDescriptor],
    *,
    options: Mapping[str, object] | None = None,
    commit: ir.Committer | None = None,
    fold: bool = False,
) -> Report:
    """Run passes over `graph` and its subgraphs, stage by stage.

    A pass that fails leaves no edit; the others of its stage still run, then `PassError` is raised
    for the stage (at once for `PassFatalError`), unless the pass was registered with
    `on_error="skip"` or `"rollback"`. The error's `report` attribute has all results, its `status`
    is that of the first failure. Edits of passes that succeeded stay.

    Arguments:
        graph: edited in place.
        selected: the passes, in running order.
        options: what passes may read with `context.get_option_value`. `verify` runs every rewrite
            against what it replaces, `dump_passes` names a folder for the graphs before and after.
        commit: called with the edits of every pass that succeeded.
        fold: whether operators on constants are computed once, before the last stage.
    """
    report = Report(graph.name)
    run = _Run(graph, options or {}, Controls.of(options or {}), commit, report)
    for stage in PassStage:
        if stage is PassStage.AFTER_INFER_SHAPE:
            run.infer_shapes()
        if fold and stage is PassStage.AFTER_ORIGIN_GRAPH_OPTIMIZE:
            with graph.transaction("fold_constants") as edits:
                report.folded = fold_constants(graph)
                if commit is not None:
                    commit(edits)
        run.stage([descriptor for descriptor in selected if descriptor.stage is stage])
    return report


class _Run:
    """One call of `run_passes`."""

    def __init__(
        self,
        graph: ir.Graph,
        options: Mapping[str, object],
        controls: Controls,
        commit: ir.Committer | None,
        report: Report,
    ) -> None:
        self._graph = graph
        self._options = options
        self._controls = controls
        self._commit = commit
        self._report = report
        self._shared = {item: ir.shared_outputs(item) for item in _with_subgraphs(graph)}

    def infer_shapes(self) -> None:
        """The step between the first two stages, for graphs that do not have their shapes yet."""
        for graph in _with_subgraphs(self._graph):
            if not ir.needs_shapes(graph):
                continue
            try:
                ir.infer_shapes(graph)
            except PassError as error:
                error.report = self._report  # type: ignore[attr-defined]
                raise

    def stage(self, descriptors: Sequence[PassDescriptor]) -> None:
        """Run the passes of one stage; raise for those that failed."""
        failures: list[Exception] = []
        for descriptor in descriptors:
            for graph in _with_subgraphs(self._graph):
                error = self._one(descriptor, graph)
                if error is not None:
                    failures.append(error)
                if isinstance(error, PassFatalError):
                    raise _combined(self._report, failures)
        if failures:
            raise _combined(self._report, failures)

    def _one(self, descriptor: PassDescriptor, graph: ir.Graph) -> Exception | None:
        missing = self._failed_requirement(descriptor)
        if missing is not None:
            self._report.results.append(
                PassResult(
                    descriptor.pass_name,
                    descriptor.stage.name,
                    PassStatus.SKIPPED,
                    message=f"it requires {missing!r}, which failed",
                    version=descriptor.version,
                    graph=graph.name,
                )
            )
            return None
        shared = self._shared.setdefault(graph, frozenset())
        session = Session(graph, descriptor, self._options, shared, self._controls)
        self._report.results.append(session.result)
        with ir.shapes_withheld(graph, descriptor.stage is PassStage.BEFORE_INFER_SHAPE):
            error = session.execute(self._commit if graph is self._graph else None)
        tolerant = descriptor.on_error is not ErrorPolicy.FAIL
        never = isinstance(error, (PassFatalError, WrongRewriteError))
        if error is not None and tolerant and not never:
            _LOG.warning("pass %r failed and was undone: %s", *_said(session.result))
            session.result.tolerated = True
            return None
        return error

    def _failed_requirement(self, descriptor: PassDescriptor) -> str | None:
        if not descriptor.requires:
            return None
        failed = {item.name for item in self._report.results if item.status is PassStatus.FAILED}
        return next((name for name in descriptor.requires if name in failed), None)


def _with_subgraphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """The graph, then its subgraphs at any depth that belong to a node that is still there."""
    yield graph
    for subgraph in graph.get_all_subgraphs():
        if subgraph.get_parent_node() is not None:
            yield from _with_subgraphs(subgraph)


def _said(result: PassResult) -> tuple[str, str]:
    return result.name, result.message


def _combined(report: Report, failures: list[Exception]) -> PassError:
    failed = [
        result
        for result in report.results
        if result.status is PassStatus.FAILED and not result.tolerated
    ]
    text = "; ".join(f"pass {result.name!r} failed: {result.message}" for result in failed)
    kind = (
        PassFatalError
        if any(isinstance(error, PassFatalError) for error in failures)
        else PassError
    )
    if any(isinstance(error, WrongRewriteError) for error in failures):
        kind = WrongRewriteError
    combined = kind(f"{text}. Its edits were undone.", status=failed[0].code)
    combined.report = report  # type: ignore[attr-defined]
    combined.__cause__ = failures[0]
    return combined
