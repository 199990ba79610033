"""What `bringup passes explain` and `bisect` print."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from bringup import report
from bringup.cli.explain.reports import page, reports_as_json, show_reports
from bringup.cli.explain.run import Explanation
from bringup.compiler.bisection import Bisection
from bringup.passes import PassReport, PassResult, PassStatus
from bringup.passes.report import dump_stem
from bringup.report._figures import GraphNode, rewrite

# Of a value in the text of a graph.
_NAME = re.compile(r"%([^\s:,()\[\]]+)")


def show_explanation(console: Console, found: Explanation, *, every: bool) -> None:
    if found.reports:
        show_reports(console, found.model, found.reports, every=every, taken=found.taken)
    else:
        console.print("No graph was found in this model, so no pass ran.", markup=False)
    if found.error:
        console.print(found.error, markup=False, style="red", soft_wrap=True)


def explanation_page(found: Explanation, dumped: Path) -> report.Page:
    shown = page(found.model, found.reports, found.taken)
    if figures := _pictures(found.reports, dumped):
        words = "Red nodes went, green ones came; with what they read, and what reads them."
        shown.sections.insert(1, report.Section("The graphs", [words], figures=figures))
    shown.headline += [found.error] if found.error else []
    return shown


def _graph(result: PassResult) -> str:
    return result.graph


def _pictures(reports: Sequence[PassReport], folder: Path) -> list[str]:
    """Return each graph that passes changed, before the first and after the last of them."""
    found = []
    for ran in reports:
        changed = [one for one in ran.results if one.status is PassStatus.CHANGED]
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


def explanation_as_json(found: Explanation) -> dict[str, object]:
    return {
        "model": found.model,
        "error": found.error,
        "unmatched": found.unmatched,
        "graphs": reports_as_json(found.reports),
    }


def show_bisection(console: Console, found: Bisection) -> None:
    if not found.culprits:
        text = f"Nothing differs from eager, with all {found.rewrites} rewrites."
        console.print(text, markup=False, soft_wrap=True)
    for number, culprit in enumerate(found.culprits, start=1):
        text = f"{number}. {culprit}"
        if culprit.switch:
            text += f"\n   Without it: {culprit.switch}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def bisection_as_json(model: str, found: Bisection) -> dict[str, object]:
    return {"model": model, **asdict(found)}
