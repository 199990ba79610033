"""Driving the hooks of a pattern or decompose pass over the nodes of one graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bringup import ir
from bringup.errors import PassError, PassSkipException
from bringup.passes.base import DecomposePass, PatternFusionPass, pattern_methods
from bringup.passes.events import EventKind
from bringup.passes.expressions import configure, pattern_of
from bringup.passes.matcher import Candidate, Matcher
from bringup.passes.native_matcher import NativeMatcher, make_matcher
from bringup.passes.patterns import Pattern
from bringup.passes.report import NearMiss
from bringup.passes.rewriter import as_graph, replace

if TYPE_CHECKING:
    from bringup.passes.session import Session

__all__ = ["Rewriting"]


class Rewriting:
    """The main flow of one session of a pass that is driven by its hooks.

    One sweep visits the nodes that were there when it began, so a replacement that holds its own
    pattern ends. `repeat_until_stable` sweeps again until nothing was rewritten.
    """

    def __init__(self, session: Session, instance: PatternFusionPass | DecomposePass) -> None:
        self._session = session
        self._instance = instance
        self._graph = session.graph
        self._result = session.result
        self._descriptor = session.descriptor
        self._storages = ir.Storages(self._graph)
        self._most = self._descriptor.max_rewrites or self._most_when_repeated()

    def run(self) -> None:
        """Rewrite what matches. Raises what the hooks raise, unless the policy is to skip."""
        sweep = self._sweep_patterns() if self._is_pattern_pass() else self._sweep_decompose
        while True:
            before = self._result.matches
            sweep()
            stable = self._result.matches == before
            if stable or self._is_spent() or not self._descriptor.repeat_until_stable:
                break
        if self._is_spent():
            self._tell_spent()

    def _is_pattern_pass(self) -> bool:
        return isinstance(self._instance, PatternFusionPass)

    def _most_when_repeated(self) -> int | None:
        return 1000 + 10 * len(self._graph) if self._descriptor.repeat_until_stable else None

    def _is_spent(self) -> bool:
        return self._most is not None and self._result.matches >= self._most

    def _tell_spent(self) -> None:
        if self._descriptor.max_rewrites is None:
            raise PassError(
                f"{self._descriptor.pass_name!r} does not become stable: after {self._most} "
                "rewrites it still finds something to rewrite; does its replacement hold its own "
                "pattern? Give it max_rewrites, or do not repeat it"
            )
        self._result.message = f"stopped after {self._most} rewrites (max_rewrites)"

    # Patterns

    def _sweep_patterns(self) -> Callable[[], None]:
        assert isinstance(self._instance, PatternFusionPass)
        patterns = self._patterns(self._instance)

        def sweep() -> None:
            self._result.near_misses.clear()
            for pattern in patterns:
                self._sweep_pattern(pattern)

        return sweep

    def _sweep_pattern(self, pattern: Pattern) -> None:
        if self._is_spent():
            return
        matcher = make_matcher(pattern, self._graph, self._storages)
        for candidate in matcher.matches():
            self._rewrite(matcher, candidate)
            if self._is_spent():
                break
        if matcher.near_miss is not None:
            self._result.near_misses.append(matcher.near_miss)

    def _rewrite(self, matcher: NativeMatcher | Matcher, candidate: Candidate) -> None:
        match = candidate.result
        nodes = match.get_matched_nodes()
        names = [node.name for node in nodes]
        self._session.emit(EventKind.MATCHED, pattern=match.pattern_name, nodes=names)

        def rewrite() -> tuple[ir.Node, ...]:
            if not self._call("meet_requirements", match):
                raise _RefusedError("meet_requirements returned False")
            replacement = as_graph(
                self._call("replacement", match), f"{type(self._instance).__qualname__}.replacement"
            )
            self._permit(names)
            inputs, outputs = match.inputs, match.outputs
            self._verify(match.pattern_name, nodes, inputs, outputs, replacement)
            for node in candidate.hoist:
                self._graph.move_before(node, candidate.before)
            return replace(
                self._graph,
                replacement,
                inputs=inputs,
                outputs=outputs,
                nodes=nodes,
                before=candidate.before,
                storages=self._storages,
            )

        try:
            pattern = match.pattern_name
            refused = self._attempt(rewrite, pattern, names)
            if refused is not None:
                matcher.refuse(nodes[-1], refused)
        finally:
            match.expire()

    def _attempt(
        self, rewrite: Callable[[], tuple[ir.Node, ...]], pattern: str, names: list[str]
    ) -> str | None:
        """Rewrite one match, all or nothing; the reason if it was left alone."""
        undone: list[ir.Edit] = []
        try:
            with self._graph.savepoint(undone):
                made = rewrite()
        except PassSkipException as skip:
            reason = f"skipped: {skip}"
        except _RefusedError as refusal:
            reason = str(refusal)
        except Exception as error:
            if not self._session.tolerates(error):
                raise
            reason = f"failed: {self._session.record_error(error)}"
            self._result.failures += 1
        else:
            self._result.matches += 1
            new_nodes = [node.name for node in made]
            self._session.emit(
                EventKind.REPLACED, pattern=pattern, nodes=names, new_nodes=new_nodes
            )
            return None
        if undone:
            self._storages.rebuild()
        self._result.refused += 1
        return reason

    def _permit(self, names: list[str]) -> None:
        if not self._session.may_rewrite(names):
            raise _RefusedError("beyond the limit of rewrites")

    def _verify(
        self,
        pattern: str,
        nodes: Sequence[ir.Node],
        inputs: Sequence[ir.Value | None],
        outputs: Sequence[ir.Value],
        replacement: ir.Graph,
    ) -> None:
        verifier = self._session.verifier
        if verifier is not None and len(replacement.outputs) == len(outputs):
            names = ", ".join(node.name for node in nodes)
            verifier.check(f"{pattern} ({names})", nodes, inputs, outputs, replacement)

    def _call(self, hook: str, subject: object) -> Any:
        return self._instance.hooks[hook](self._instance, subject, self._session.context)

    def _patterns(self, instance: PatternFusionPass) -> list[Pattern]:
        methods = pattern_methods(type(instance))
        if methods:
            return [pattern_of(instance, name, self._graph.dialect) for name in methods]
        given = instance.patterns()
        listed = given if isinstance(given, (tuple, list)) else [given]
        patterns = [item if isinstance(item, Pattern) else Pattern(item) for item in listed]  # type: ignore[arg-type]
        if not patterns:
            raise PassError(f"{type(instance).__qualname__}.patterns() returned no pattern")
        for pattern in patterns:
            if not pattern.is_valid():
                raise PassError(
                    f"{type(instance).__qualname__}.patterns() returned the pattern "
                    f"{pattern.name!r}, which was released"
                )
            configure(pattern, self._graph.dialect, instance.matcher_config)
        return patterns

    # Decompose

    def _sweep_decompose(self) -> None:
        self._result.near_misses.clear()
        targets = [
            node for op_type in self._descriptor.op_types for node in self._graph.find(op_type)
        ]
        order = {node: number for number, node in enumerate(self._graph.nodes)}
        for node in sorted(targets, key=order.__getitem__):
            if self._is_spent():
                break
            if self._graph.owns(node):
                self._decompose(node)
        if not targets:
            wanted = ", ".join(self._descriptor.op_types)
            self._result.near_misses.append(NearMiss(wanted, "", f"the graph has no {wanted}"))

    def _decompose(self, node: ir.Node) -> None:
        op_type, name = node.op_type, node.name

        def rewrite() -> tuple[ir.Node, ...]:
            reason = self._why_not_replaced(node)
            if reason is not None:
                raise _RefusedError(reason)
            self._session.emit(EventKind.MATCHED, pattern=op_type, nodes=[name])
            if not self._call("meet_requirements", node):
                raise _RefusedError("meet_requirements returned False")
            replacement = as_graph(
                self._call("replacement", node), f"{type(self._instance).__qualname__}.replacement"
            )
            used = [value for value in node.outputs if value.users] or list(node.outputs)
            inputs = list(dict.fromkeys(node.inputs))
            outputs = used if len(replacement.outputs) == len(used) else list(node.outputs)
            self._permit([name])
            self._verify(op_type, [node], inputs, outputs, replacement)
            return replace(
                self._graph,
                replacement,
                inputs=inputs,
                outputs=outputs,
                nodes=[node],
                before=node,
                storages=self._storages,
            )

        refused = self._attempt(rewrite, op_type, [name])
        if refused is not None and not self._result.near_misses:
            self._result.near_misses.append(NearMiss(op_type, name, refused))

    def _why_not_replaced(self, node: ir.Node) -> str | None:
        if not node.pure:
            return "the operator writes memory or is random, so it is never replaced"
        for value in node.outputs:
            writer = self._storages.writer_of(value)
            if writer is not None:
                return f"its memory is written by {writer.name!r}, so it is not replaced"
        return None


class _RefusedError(Exception):
    """A match is left alone; its text says why."""
