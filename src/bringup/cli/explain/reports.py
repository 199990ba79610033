"""What passes did to a model's graphs, as a table, lines and values. No torch in it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from bringup import report
from bringup.cli._columns import fixed, numbers
from bringup.passes import PassReport, PassResult


def show_reports(console: Console, model: str, reports: Sequence[PassReport]) -> None:
    """Print what every pass did to every graph, and how close it came where it did nothing."""
    columns = [*numbers("graph"), *fixed("pass", "status")]
    columns += numbers("matches", "refused", "verified", "ms")
    table = report.Table(model, columns)
    for number, graph in enumerate(reports, start=1):
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
    for number, graph in enumerate(reports, start=1):
        for result in graph.results:
            for line in _lines(result):
                text = f"graph {_place(number, graph, result)}, {result.name}: {line}"
                console.print(text, markup=False, soft_wrap=True)


def _place(number: int, graph: PassReport, result: PassResult) -> str:
    """Return the graph of a result: the report's number and the inner graph's name."""
    return str(number) if result.graph == graph.graph else f"{number} {result.graph}"


def _lines(result: PassResult) -> list[str]:
    lines = [result.message] if result.message else []
    lines += [f"not verified: {reason}" for reason in result.unverified]
    return [*lines, *(f"nearest miss: {miss}" for miss in result.near_misses)]


def reports_as_json(reports: Sequence[PassReport]) -> list[dict[str, object]]:
    """Return the reports as values that `report.to_json` takes."""
    return [
        {
            "graph": graph.graph,
            "folded": graph.folded,
            "passes": graph.results,
            "plugin_errors": [str(error) for error in graph.plugin_errors],
        }
        for graph in reports
    ]
