"""What passes made of a model's graphs as pictures, from the files that `dump_passes` writes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bringup.passes import PassReport, PassResult, PassStatus
from bringup.passes.report import dump_stem
from bringup.report._figures import GraphNode, rewrite

# Of a value in the text of a graph.
_NAME = re.compile(r"%([^\s:,()\[\]]+)")


def _graph(result: PassResult) -> str:
    return result.graph


def pictures(reports: Sequence[PassReport], folder: Path) -> list[str]:
    """Return each graph that passes changed, before the first and after the last of them."""
    found = []
    for report in reports:
        changed = [one for one in report.results if one.status is PassStatus.CHANGED]
        by_graph = itertools.groupby(sorted(changed, key=_graph), _graph)
        for stems in ([dump_stem(one) for one in ones] for _, ones in by_graph):
            texts = f"{stems[0]}.before.txt", f"{stems[-1]}.after.txt"
            found.append(rewrite(*(list(_nodes((folder / name).read_text())) for name in texts)))
    return found


def _nodes(text: str) -> Iterator[GraphNode]:
    """Yield a graph's nodes but inputs and constants; subgraphs are pictures of their own."""
    for line in text.splitlines()[1:]:
        if line.startswith("  graph "):
            return
        values, equals, call = line.strip().partition(" = ")
        operator, _, arguments = (call if equals else values).partition("(")
        if not operator.startswith(("ir::input", "ir::constant")):
            named = _NAME.search(values) if equals else None
            name = named[1] if named else ""
            yield GraphNode(name, operator, {*_NAME.findall(arguments)})
