"""What running passes found out: matches, near misses, failures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from bringup.errors import PluginError

if TYPE_CHECKING:
    from bringup.report import Table


_LONGEST = 200  # bytes; a file's name may have 255


class PassStatus(Enum):
    """How one pass on one graph ended."""

    CHANGED = "changed"
    UNCHANGED = "unchanged"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True)
class NearMiss:
    """The candidate that came closest to a match, and the one thing that was wrong with it.

    Attributes:
        pattern: the pattern's name.
        node: the target node that did not fit; "" when the graph has no candidate at all.
        reason: what kind of thing was wrong.
        expected, got: what the pattern wants there and what stands there; may be empty.
        matched: how many of the pattern's `size` nodes had been found by then.
    """

    pattern: str
    node: str
    reason: str
    expected: str = ""
    got: str = ""
    matched: int = 0
    size: int = 0

    def __str__(self) -> str:
        where = f"at {self.node!r}: " if self.node else ""
        detail = f" (expected {self.expected}, got {self.got})" if self.expected or self.got else ""
        progress = f"{self.matched} of {self.size} nodes matched, " if self.size else ""
        return f"{self.pattern}: {progress}{where}{self.reason}{detail}"


@dataclass
class PassResult:
    """One pass on one graph.

    Attributes:
        name, stage: of the pass.
        status: how it ended.
        matches: how many matches were rewritten (for a graph pass: 1 when it edited anything).
        refused: how many matches a hook refused.
        edits: how many edits reached the graph.
        near_misses: the best near miss of every pattern in each graph, also when others matched.
        message: why it was skipped or failed, or stopped early.
        seconds: wall time.
        version, graph, instance_id: of the pass, the graph's name, and the session's number.
        code: 0; of a pass that failed, its status, or the code of the error.
        failures: how many matches failed and were left alone (`on_error="skip"`).
        tolerated: whether the pass failed and the compile went on.
        verified: how many rewrites were run against what they replaced, and agreed.
        unverified: why others could not be run.
        traceback: of the last error.
    """

    name: str
    stage: str
    status: PassStatus = PassStatus.UNCHANGED
    matches: int = 0
    refused: int = 0
    edits: int = 0
    near_misses: list[NearMiss] = field(default_factory=list)
    message: str = ""
    seconds: float = 0.0
    version: str = "1"
    graph: str = ""
    instance_id: int = 0
    code: int = 0
    failures: int = 0
    tolerated: bool = False
    verified: int = 0
    unverified: list[str] = field(default_factory=list)
    traceback: str = ""

    def __str__(self) -> str:
        text = f"{self.name}: {self.status.value}, {self.matches} matches, {self.edits} edits"
        if self.message:
            text += f" ({self.message})"
        if self.verified:
            text += f", {self.verified} verified"
        lines = [f"  not verified: {reason}" for reason in self.unverified]
        lines += [f"  nearest miss: {miss}" for miss in self.near_misses]
        return "\n".join([text, *lines])


@dataclass
class PassReport:
    """All passes on one graph, in the order they ran, and the plugins that could not be loaded.

    Attributes:
        graph: its name.
        results: one for each pass on each graph, subgraphs too.
        plugin_errors: of those that could not be loaded.
        folded: how many nodes were replaced by a constant computed once.
    """

    graph: str
    results: list[PassResult] = field(default_factory=list)
    plugin_errors: list[PluginError] = field(default_factory=list)
    folded: int = 0

    @property
    def matches(self) -> dict[str, int]:
        """Return matches by pass name, over the graph and its subgraphs."""
        found: dict[str, int] = {}
        for result in self.results:
            found[result.name] = found.get(result.name, 0) + result.matches
        return found

    def __getitem__(self, name: str) -> PassResult:
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(f"no pass named {name!r} ran on graph {self.graph!r}")

    def __str__(self) -> str:
        lines = [f"passes on {self.graph}:"]
        for result in self.results:
            where = "" if result.graph in ("", self.graph) else f"{result.graph}: "
            lines.extend(f"  {line}" for line in f"{where}{result}".splitlines())
        if self.folded:
            lines.append(f"  {self.folded} nodes folded into constants")
        lines.extend(f"  not loaded: {error}" for error in self.plugin_errors)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        table = result_table((result.name, result) for result in self.results)
        table.title = f"passes on {self.graph}"
        table.notes += [str(miss) for result in self.results for miss in result.near_misses]
        return table._repr_html_()


def result_table(results: Iterable[tuple[str, PassResult]]) -> Table:
    """Return the results as a table, each under the name that is given with it."""
    from bringup.report import Table
    from bringup.report._columns import fixed, names, numbers

    counts = numbers("matches", "refused", "verified", "ms")
    table = Table("", [*names("pass"), *fixed("status"), *counts])
    for name, one in results:
        numbered = map(str, (one.matches, one.refused, one.verified))
        table.add(name, one.status.value, *numbered, f"{1000 * one.seconds:.2f}")
    return table


def dump_stem(result: PassResult) -> str:
    """Return how the names of the files begin that `dump_passes` writes of a pass."""
    words = f"{result.instance_id:04}_{result.graph}_{result.name}"
    return re.sub(r"[^\w.@-]+", "_", words).encode()[:_LONGEST].decode(errors="ignore")


def match_bars(reports: Iterable[PassReport]) -> list[str]:
    """Return the picture of how much each pass matched in all graphs, none where nothing did."""
    from bringup import report

    matched: Counter[str] = Counter()
    for found in reports:
        matched.update(found.matches)
    rows = [(name, count, str(count)) for name, count in matched.items() if count]
    return [report.bars(rows)] if rows else []
