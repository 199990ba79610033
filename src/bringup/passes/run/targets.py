"""What a pass may rewrite in one graph: the matches of its patterns, or a node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bringup import ir
from bringup.errors import PassError
from bringup.passes.definition.base import PatternFusionPass, pattern_methods
from bringup.passes.definition.expressions import configure, pattern_of
from bringup.passes.engine import native
from bringup.passes.matching.native_matcher import NativeMatcher
from bringup.passes.patterns.match import MatchResult, RewriteCandidate
from bringup.passes.patterns.pattern import Pattern
from bringup.passes.report import NearMiss

__all__ = ["PatternTargets", "RewriteTarget"]


@dataclass(slots=True)
class RewriteTarget:
    """One candidate.

    Attributes:
        subject: what hooks are given.
        pattern: what reports call it.
        nodes: what is replaced.
        before: the replacement stands in front of it.
        hoist: these must move there first.
    """

    subject: MatchResult | ir.Node
    pattern: str
    nodes: tuple[ir.Node, ...]
    before: ir.Node
    hoist: Sequence[ir.Node] = ()

    @property
    def names(self) -> list[str]:
        """What the nodes are called, or were before they were replaced."""
        return [node._name for node in self.nodes]

    @property
    def captures(self) -> list[str]:
        """What the captured values of a match are called; those of absent parts are left out."""
        if not isinstance(self.subject, MatchResult):
            return []
        return [value.name for value in self.subject.captured()]

    def around(self, replacement: ir.Graph) -> tuple[Sequence[ir.Value | None], Sequence[ir.Value]]:
        """What the replacement's inputs stand for (None where an optional part is absent), and what
        its outputs stand for.
        """
        subject = self.subject
        if isinstance(subject, MatchResult):
            return subject.inputs, subject.outputs
        return native.values_around(subject.graph.core, subject, len(replacement.outputs))


class PatternTargets:
    """The matches of a pass's patterns."""

    def __init__(
        self, graph: ir.Graph, aliases: ir.AliasAnalysis, instance: PatternFusionPass
    ) -> None:
        self._aliases = aliases
        self._graph = graph
        self._patterns = _patterns_of(graph, instance)
        self._match: MatchResult | None = None

    @property
    def count(self) -> int:
        """How many patterns there are."""
        return len(self._patterns)

    def start(self, search: int) -> None:
        """Look for pattern number `search`, from the first node on."""
        self._matcher = NativeMatcher(self._patterns[search], self._graph, self._aliases)
        self._found: Iterator[RewriteCandidate] = self._matcher.matches()

    def next(self) -> RewriteTarget | None:
        """The next match; the one before expires."""
        self.end()
        candidate = next(self._found, None)
        if candidate is None:
            return None
        match = self._match = candidate.result
        nodes = match.get_matched_nodes()
        return RewriteTarget(match, match.pattern_name, nodes, candidate.before, candidate.hoist)

    def end(self) -> None:
        """Let the match expire that was found last."""
        if self._match is not None:
            self._match.expire()
        self._match = None

    def refuse(self, target: RewriteTarget, reason: str) -> None:
        """Note that a match was left alone."""
        self._matcher.refuse(target.nodes[-1], reason)

    @property
    def near_miss(self) -> NearMiss | None:
        """What came closest since `start`."""
        return self._matcher.near_miss


def _patterns_of(graph: ir.Graph, instance: PatternFusionPass) -> list[Pattern]:
    methods = pattern_methods(type(instance))
    if methods:
        return [pattern_of(instance, name, graph.dialect) for name in methods]
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
        configure(pattern, graph.dialect, instance.matcher_config)
    return patterns
