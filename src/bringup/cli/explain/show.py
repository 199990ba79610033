"""What `bringup passes explain` and `bisect` print."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console

from bringup import report
from bringup.cli.explain.run import Explanation
from bringup.compiler.bisection import Bisection
from bringup.passes import PassReport, PassResult

__all__ = ["bisection_as_json", "explanation_as_json", "show_bisection", "show_explanation"]


def show_explanation(console: Console, found: Explanation) -> None:
    """Print what every pass did to every graph, and how close it came where it did nothing."""
    columns = [
        report.Column("graph", number=True),
        report.Column("pass", fixed=True),
        report.Column("status", fixed=True),
        report.Column("matches", number=True),
        report.Column("refused", number=True),
        report.Column("verified", number=True),
        report.Column("ms", number=True),
    ]
    table = report.Table(found.model, columns)
    for number, graph in enumerate(found.reports, start=1):
        for result in graph.results:
            counts = (result.matches, result.refused, result.verified)
            table.add(
                _place(number, graph, result),
                result.name,
                result.status.value,
                *(str(count) for count in counts),
                f"{1000 * result.seconds:.2f}",
            )
    report.render(table, console)
    for number, graph in enumerate(found.reports, start=1):
        for result in graph.results:
            for line in _lines(result):
                text = f"graph {_place(number, graph, result)}, {result.name}: {line}"
                console.print(text, markup=False, soft_wrap=True)
    if not found.reports:
        console.print("No graph was found in this model, so no pass ran.", markup=False)
    if found.error:
        console.print(found.error, markup=False, style="red", soft_wrap=True)


def _place(number: int, graph: PassReport, result: PassResult) -> str:
    """Which graph a result is about: the number of the report, and the name of an inner graph."""
    return str(number) if result.graph == graph.graph else f"{number} {result.graph}"


def _lines(result: PassResult) -> list[str]:
    lines = [result.message] if result.message else []
    lines += [f"not verified: {reason}" for reason in result.unverified]
    return [*lines, *(f"nearest miss: {miss}" for miss in result.near_misses)]


def explanation_as_json(found: Explanation) -> dict[str, object]:
    """The explanation as values that `report.to_json` takes."""
    return {
        "model": found.model,
        "error": found.error,
        "unmatched": found.unmatched,
        "graphs": [
            {
                "graph": graph.graph,
                "folded": graph.folded,
                "passes": graph.results,
                "plugin_errors": [str(error) for error in graph.plugin_errors],
            }
            for graph in found.reports
        ],
    }


def show_bisection(console: Console, found: Bisection) -> None:
    """Print what is to blame, and how to switch it off."""
    if not found.culprits:
        text = f"Nothing differs from eager, with all {found.rewrites} rewrites."
        console.print(text, markup=False, soft_wrap=True)
    for number, culprit in enumerate(found.culprits, start=1):
        text = f"{number}. {culprit}"
        if culprit.switch:
            text += f"\n   Without it: {culprit.switch}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def bisection_as_json(model: str, found: Bisection) -> dict[str, object]:
    """The bisection as values that `report.to_json` takes."""
    return {"model": model, **asdict(found)}
