"""What passes did to a model's graphs, as a table, lines and values. No torch in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from rich.console import Console
from rich.text import Text

from bringup import report
from bringup.passes import EventKind, PassEvent, PassReport, PassResult, PassStatus
from bringup.passes.report import match_bars, result_table
from bringup.report._columns import texts

Takers = Mapping[int, Mapping[str, str]]
"""Which pass took an operator out of a graph, by the instance that does not find it there."""

_ABSENT, _NEEDS = "the graph has no ", "need "
_ACTIVE = (PassStatus.CHANGED, PassStatus.FAILED)


class OperatorWatch:
    """Listens to passes: which of them took the last node of an operator out of a graph."""

    def __init__(self) -> None:
        self.taken: dict[int, dict[str, str]] = {}
        self._before: dict[int, tuple[str, set[str], dict[str, str]]] = {}

    def __call__(self, event: PassEvent) -> None:
        """Compare what a graph has as a pass begins with what it had for the pass before."""
        if event.kind is not EventKind.CREATED:
            return
        has = set(cast("list[str]", event.details["operators"]))
        name, had, takers = self._before.get(event.graph_id, ("", set[str](), {}))
        takers = takers | dict.fromkeys(had - has, name)
        self._before[event.graph_id] = event.pass_name, has, takers
        self.taken[event.instance_id] = takers


def show_reports(
    console: Console,
    model: str,
    reports: Sequence[PassReport],
    *,
    every: bool = False,
    taken: Takers | None = None,
) -> None:
    """Print which passes changed the model, how close others came, and who took operators."""
    ran = list(_results(reports))
    _print(console, f"{model}: {_answer(reports)}", "bold")
    shown = [item for item in ran if every or item[1].status in _ACTIVE]
    if shown:
        report.render(result_table(shown), console)
    for line in _messages(ran):
        _print(console, line)
    near, rest = _misses(ran, taken)
    if near:
        _print(console, "\nNear misses, nearest first:")
    for one in near:
        _print(console, f"  {one.who}\n      {one.words}")
    if not rest:
        return
    _print(console, f"\nNot near{'' if every else ' (`bringup passes explain --all` shows each)'}:")
    lines = [f"{one.who}: {one.words}" for one in rest] if every else _folded(rest)
    console.print("\n".join(f"  {line}" for line in lines), markup=False, highlight=False)


def page(model: str, reports: Sequence[PassReport], taken: Takers | None = None) -> report.Page:
    ran = list(_results(reports))
    active = [item for item in ran if item[1].status in _ACTIVE]
    tables = [result_table(active)] if active else []
    sections = [
        report.Section("What they did", _messages(ran), tables=tables, figures=match_bars(reports))
    ]
    headings = "Near misses, nearest first", "Not near"
    for heading, ones in zip(headings, _misses(ran, taken), strict=True):
        table = report.Table(
            "", texts("pattern", "why not"), [(one.who, one.words) for one in ones]
        )
        sections.append(report.Section(heading, tables=[table] if ones else []))
    return report.Page(f"bringup passes explain {model}", [_answer(reports)], sections=sections)


def _messages(ran: Sequence[tuple[str, PassResult]]) -> list[str]:
    lines = []
    for who, result in ran:
        if result.message and result.status in _ACTIVE:
            lines.append(f"{who}: {result.message}")
        lines += [f"{who}: not verified: {words}" for words in result.unverified]
    return lines


def _misses(
    ran: Sequence[tuple[str, PassResult]], taken: Takers | None
) -> tuple[list[_Reason], list[_Reason]]:
    """Return near misses, nearest first, and those that are not near."""
    reasons = [one for who, result in ran for one in _reasons(who, result, taken or {})]
    near = sorted((one for one in reasons if one.nearness), key=lambda one: -one.nearness)
    return near, [one for one in reasons if not one.nearness]


def _print(console: Console, words: str, style: str = "") -> None:
    console.print(Text(words, style=style), soft_wrap=True)


def _results(reports: Sequence[PassReport]) -> Iterator[tuple[str, PassResult]]:
    """Yield each result with its pass's name, and its graph's where there are several."""
    for number, graph in enumerate(reports, start=1):
        for result in graph.results:
            inner = "" if result.graph == graph.graph else f" {result.graph}"
            place = f"graph {number}{inner}, " if inner or len(reports) > 1 else ""
            yield f"{place}{result.name}", result


def _answer(reports: Sequence[PassReport]) -> str:
    results = [result for _, result in _results(reports)]
    ran = {one.name for one in results}
    changed = {one.name for one in results if one.matches}
    failed = {one.name for one in results if one.status is PassStatus.FAILED}
    words = f"{len(changed)} of {len(ran)} passes changed it" if changed else "no pass changed it"
    return f"{words}, {len(failed)} failed" if failed else words


@dataclass(frozen=True)
class _Reason:
    """Why a pass or a pattern of it did nothing, and how much of the pattern was there: 0 to 1."""

    who: str
    words: str
    short: str
    nearness: float = 0.0


def _reasons(who: str, result: PassResult, taken: Takers) -> Iterator[_Reason]:
    takers = taken.get(result.instance_id, {})
    if result.message and result.status not in _ACTIVE:
        words = result.message + _taken(result.message, takers)
        yield _Reason(who, words, words.replace(_ABSENT, _NEEDS))
    for miss in result.near_misses:
        progress = f", {miss.matched} of {miss.size} nodes matched" if miss.size else ""
        where = f"at {miss.node!r}: " if miss.node else ""
        detail = f" (expected {miss.expected}, got {miss.got})" * bool(miss.expected or miss.got)
        short = miss.reason + _taken(miss.reason, takers)
        words = f"{where}{miss.reason}{detail}" if detail else where + short
        name = f"{who}: {miss.pattern}" if miss.pattern != result.name else who
        # All of it is there where a hook refused a match, which has no size.
        part = miss.matched / miss.size if miss.size else not miss.reason.startswith(_ABSENT)
        yield _Reason(name + progress, words, short.replace(_ABSENT, _NEEDS), float(part))


def _taken(reason: str, takers: Mapping[str, str]) -> str:
    """Return which passes took what is not there, in parentheses."""
    if not reason.startswith(_ABSENT):
        return ""
    absent = reason.removeprefix(_ABSENT).split(" or ")
    by = [(f"{name} " * (len(absent) > 1), takers[name]) for name in absent if name in takers]
    return f" ({', '.join(f'{name}taken by {taker}' for name, taker in by)})" if by else ""


def _folded(reasons: Sequence[_Reason]) -> Iterator[str]:
    for short, count in Counter(one.short for one in reasons).most_common():
        colon = "" if short.startswith(_NEEDS) else ":"
        words = short.replace(_NEEDS, "needs ") if count == 1 else short
        yield f"{count} pattern{'s' * (count > 1)}{colon} {words}"


def reports_as_json(reports: Sequence[PassReport]) -> list[dict[str, object]]:
    return [
        {
            "graph": graph.graph,
            "folded": graph.folded,
            "passes": graph.results,
            "plugin_errors": [str(error) for error in graph.plugin_errors],
        }
        for graph in reports
    ]
