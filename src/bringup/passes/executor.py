"""Running passes over a graph: stages, hooks, statuses, and undoing what failed."""

from __future__ import annotations

import difflib
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bringup import ir, settings
from bringup.errors import PassError, PassFatalError, PassSkipException
from bringup.passes.base import (
    DecomposePass,
    FusionBasePass,
    PassContext,
    PassStage,
    PatternFusionPass,
    pattern_methods,
)
from bringup.passes.folding import fold_constants
from bringup.passes.matcher import Candidate, Matcher
from bringup.passes.patterns import Pattern, PatternInputs
from bringup.passes.registry import PassDescriptor, get_registered_passes
from bringup.passes.report import NearMiss, PassResult, PassStatus, Report
from bringup.passes.rewriter import as_graph, replace

__all__ = ["Committer", "run_passes", "select_passes"]

_LOG = settings.logger("passes")

Committer = Callable[[Sequence[ir.Edit]], None]
"""Repeats a successful pass's edits on the graph that the edited one mirrors."""


def select_passes(names: Sequence[str] | None) -> tuple[PassDescriptor, ...]:
    """The registered passes of these names in running order; all of them for None.

    Raises `ValueError` that suggests the nearest name when one is not registered.
    """
    registered = get_registered_passes()
    if names is None:
        return registered
    if isinstance(names, str):
        raise TypeError(f"passes must be a list of names or None, got the string {names!r}")
    known = [item.pass_name for item in registered]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"no pass named {name!r} is registered; there are {known}.{hint}")
    return tuple(item for item in registered if item.pass_name in names)


def run_passes(
    graph: ir.Graph,
    selected: Sequence[PassDescriptor],
    *,
    options: Mapping[str, object] | None = None,
    commit: Committer | None = None,
    fold: bool = False,
) -> Report:
    """Run passes over `graph`, stage by stage.

    A pass that fails leaves no edit; the others of its stage still run, then `PassError` is raised
    for the stage (at once for `PassFatalError`). The error's `report` attribute has all results.
    Edits of passes that succeeded stay.

    Arguments:
        graph: edited in place.
        selected: the passes, in running order.
        options: what passes may read with `context.get_option_value`.
        commit: called with the edits of every pass that succeeded.
        fold: whether operators on constants are computed once, before the last stage.
    """
    report = Report(graph.name)
    shared = ir.shared_outputs(graph)
    for stage in PassStage:
        if fold and stage is PassStage.AFTER_ORIGIN_GRAPH_OPTIMIZE:
            with graph.transaction("fold_constants") as edits:
                report.folded = fold_constants(graph)
                if commit is not None:
                    commit(edits)
        failures: list[Exception] = []
        for descriptor in selected:
            if descriptor.stage is not stage:
                continue
            error = _Session(graph, descriptor, options or {}, shared).execute(report, commit)
            if error is not None:
                failures.append(error)
            if isinstance(error, PassFatalError):
                break
        if failures:
            raise _combined(report, failures)
    return report


def _combined(report: Report, failures: list[Exception]) -> PassError:
    failed = [result for result in report.results if result.status is PassStatus.FAILED]
    text = "; ".join(f"pass {result.name!r} failed: {result.message}" for result in failed)
    kind = (
        PassFatalError
        if any(isinstance(error, PassFatalError) for error in failures)
        else PassError
    )
    combined = kind(f"{text}. Its edits were undone.")
    combined.report = report  # type: ignore[attr-defined]
    combined.__cause__ = failures[0]
    return combined


@dataclass
class _Session:
    """One run of one pass on one graph, with one fresh instance of its class."""

    graph: ir.Graph
    descriptor: PassDescriptor
    options: Mapping[str, object]
    shared: frozenset[tuple[int, str]]

    def __post_init__(self) -> None:
        name = self.descriptor.pass_name
        self.context = PassContext(name, self.descriptor.stage, self.options)
        self.result = PassResult(name, self.descriptor.stage.name)

    def execute(self, report: Report, commit: Committer | None) -> Exception | None:
        """Run the pass, report how it went, and return the error when it failed."""
        start = time.perf_counter()
        report.results.append(self.result)
        failure: Exception | None = None
        try:
            with (
                ir.use_dialect(self.graph.dialect),
                self.graph.transaction(self.descriptor.pass_name) as edits,
            ):
                self._run(self.descriptor.pass_class())
                if edits:
                    ir.put_in_order(self.graph)
                    self.graph.settle_layouts()
                    self._check_results()
                if edits and commit is not None:
                    commit(edits)
            self.result.edits = len(edits)
            if edits:
                self.result.status = PassStatus.CHANGED
        except PassSkipException as skip:
            self.result.status, self.result.message = PassStatus.SKIPPED, str(skip)
            self.result.matches = 0
        except Exception as error:
            failure = error
            self.result.status, self.result.message = PassStatus.FAILED, self._message(error)
            self.result.matches = 0
        self.result.seconds = time.perf_counter() - start
        _LOG.info("%s", self.result)
        return failure

    def _check_results(self) -> None:
        """What was a result of its own must not become an alias of an input: callers write both."""
        new = ir.shared_outputs(self.graph) - self.shared
        if new:
            index, name = min(new)
            raise PassError(
                f"result {index} of the graph would share memory with {name!r}, which it did not "
                "before: copy it (aten::clone)"
            )

    def _message(self, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}"
        place = _user_frame(error)
        if self.context.error_message:
            text = f"{self.context.error_message} ({text})"
        return f"{text} [{place}]" if place else text

    def _run(self, instance: FusionBasePass) -> None:
        if isinstance(instance, PatternFusionPass):
            self._run_patterns(instance)
        elif isinstance(instance, DecomposePass):
            self._run_decompose(instance)
        else:
            self._check_status(instance.run(self.graph, self.context))
            self.result.matches = int(bool(self.graph.is_edited))

    def _check_status(self, status: object) -> None:
        name = self.descriptor.pass_name
        if status is None or status is True:
            return
        if isinstance(status, int):
            if status == 0 and status is not False:
                return
            said = "False" if status is False else f"status {status}"
            raise PassError(f"run of {name!r} returned {said}")
        raise TypeError(
            f"run of {name!r} must return None, a bool or an int status, "
            f"got {type(status).__name__} {status!r}"
        )

    # Patterns

    def _run_patterns(self, instance: PatternFusionPass) -> None:
        storages = ir.Storages(self.graph)
        for pattern in self._patterns(instance):
            matcher = Matcher(pattern, self.graph, storages)
            for target in matcher.candidates():
                if not self.graph.owns(target):
                    continue
                candidate = matcher.match_at(target)
                if candidate is not None:
                    self._rewrite(instance, matcher, candidate, storages)
            if matcher.near_miss is not None:
                self.result.near_misses.append(matcher.near_miss)

    def _patterns(self, instance: PatternFusionPass) -> list[Pattern]:
        methods = pattern_methods(type(instance))
        if methods:
            patterns = [_pattern_of_method(instance, name) for name in methods]
        else:
            given = instance.patterns()
            listed = given if isinstance(given, (tuple, list)) else [given]
            patterns = [item if isinstance(item, Pattern) else Pattern(item) for item in listed]  # type: ignore[arg-type]
        if not patterns:
            raise PassError(f"{type(instance).__qualname__}.patterns() returned no pattern")
        for pattern in patterns:
            if self.graph.dialect is not None and pattern.graph.dialect is None:
                pattern.graph.bind(self.graph.dialect)
        return patterns

    def _rewrite(
        self,
        instance: PatternFusionPass,
        matcher: Matcher,
        candidate: Candidate,
        storages: ir.Storages,
    ) -> None:
        match = candidate.result
        try:
            nodes = match.get_matched_nodes()
            if not instance.meet_requirements(match):
                self.result.refused += 1
                matcher.refuse(nodes[-1], "meet_requirements returned False")
                return
            replacement = as_graph(
                instance.replacement(match), f"{type(instance).__qualname__}.replacement"
            )
            for node in candidate.hoist:
                self.graph.move_before(node, candidate.before)
            replace(
                self.graph,
                replacement,
                inputs=match.inputs,
                outputs=match.outputs,
                nodes=nodes,
                before=candidate.before,
                storages=storages,
            )
            self.result.matches += 1
        except PassSkipException as skip:
            self.result.refused += 1
            matcher.refuse(nodes[-1], f"skipped: {skip}")
        finally:
            match.expire()

    # Decompose

    def _run_decompose(self, instance: DecomposePass) -> None:
        storages = ir.Storages(self.graph)
        targets = [
            node for op_type in self.descriptor.op_types for node in self.graph.find(op_type)
        ]
        for node in sorted(targets, key=lambda item: item._order):
            self._decompose(instance, node, storages)
        if not targets:
            wanted = ", ".join(self.descriptor.op_types)
            self.result.near_misses.append(NearMiss(wanted, "", f"the graph has no {wanted}"))

    def _decompose(self, instance: DecomposePass, node: ir.Node, storages: ir.Storages) -> None:
        if not node.pure:
            self._refuse_node(
                node, "the operator writes memory or is random, so it is never replaced"
            )
            return
        writer = next((w for v in node.outputs if (w := storages.writer_of(v)) is not None), None)
        if writer is not None:
            self._refuse_node(
                node, f"its memory is written by {writer.name!r}, so it is not replaced"
            )
            return
        try:
            if not instance.meet_requirements(node):
                self._refuse_node(node, "meet_requirements returned False")
                return
            replacement = as_graph(
                instance.replacement(node), f"{type(instance).__qualname__}.replacement"
            )
            used = [value for value in node.outputs if value.users] or list(node.outputs)
            outputs = used if len(replacement.outputs) == len(used) else list(node.outputs)
            inputs = list(dict.fromkeys(node.inputs))
            replace(
                self.graph,
                replacement,
                inputs=inputs,
                outputs=outputs,
                nodes=[node],
                before=node,
                storages=storages,
            )
            self.result.matches += 1
        except PassSkipException as skip:
            self._refuse_node(node, f"skipped: {skip}")

    def _refuse_node(self, node: ir.Node, reason: str) -> None:
        self.result.refused += 1
        if not self.result.near_misses:
            self.result.near_misses.append(NearMiss(node.op_type, node.name, reason))


def _pattern_of_method(instance: PatternFusionPass, name: str) -> Pattern:
    builder = ir.GraphBuilder(name)
    inputs = PatternInputs(builder)
    returned = getattr(instance, name)(inputs)
    where = f"{type(instance).__qualname__}.{name}"
    if isinstance(returned, ir.Graph):
        raise TypeError(
            f"@pattern {where} must return the holder(s) of its outputs, got a Graph; "
            "use patterns()"
        )
    graph = as_graph(returned, where)
    pattern = Pattern(graph, name)
    for holder in inputs.made():
        pattern.capture_tensor(holder)
    for value in graph.outputs:
        pattern.capture_tensor(value)
    return pattern


def _user_frame(error: Exception) -> str:
    """File and line of the innermost frame of the error that is not bringup's own."""
    own = __file__.rpartition("/passes/")[0]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(own):
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return ""
