"""What a comparison of two runs comes down to: lines, tables, a page."""

from __future__ import annotations

import math

from bringup import report
from bringup.conformance._compare import Comparison
from bringup.report._columns import fixed, numbers, texts

_SHOWN = 12


def summary(found: Comparison) -> list[str]:
    seen = found.watched
    unit = "operators" if found.level == "op" else "modules"
    lines = [
        f"{found.a} against {found.b}: {seen.operators} {unit} called, {seen.compared} compared on "
        f"equal inputs{'' if found.backward else ', forward only'}"
    ]
    if found.failure:
        lines.append(f"FAILED {found.failure}")
    if found.first is not None:
        lines.append(f"WRONG {found.first}")
        lines.append(f"  given {found.first.arguments}")
    elif not found.failure:
        lines.append(f"No {unit[:-1]} is wrong on equal inputs.")
    if seen.first_nonfinite is not None:
        lines.append(f"First NaN or infinity on one side only: {seen.first_nonfinite}")
    if seen.first_accumulated is not None and found.first is None:
        lines.append(f"Errors add up, first beyond one operator's: {seen.first_accumulated}")
    if found.far:
        lines.append(f"FAR {len(found.far)} of {len(found.results)} results of the runs")
    for words, counts in (
        ("not compared", seen.not_compared),
        ("random, what they draw is the other side's", seen.random),
        ("not called by the other side", seen.unaligned),
        ("differs and is not to blame", seen.excused),
    ):
        lines += [f"{words}: {name}, {count} calls" for name, count in counts.most_common(_SHOWN)]
    return lines + found.notes


def _differences(found: Comparison) -> report.Table:
    columns = [*texts("module"), *fixed("phase"), *texts("what"), *numbers("error", "allowed")]
    table = report.Table("Wrong on equal inputs", columns)
    for one in found.watched.differences[:_SHOWN]:
        deviation = one.deviation
        table.add(
            one.place.module or "(the model)",
            one.place.phase,
            one.place.operator,
            _number(deviation.error),
            _number(deviation.allowed),
        )
    left = len(found.watched.differences) - _SHOWN
    if left > 0:
        table.notes.append(f"and {left} more; --json has all")
    return table


def _results(found: Comparison) -> report.Table:
    columns = [*texts("result"), *numbers("error"), *fixed("what")]
    table = report.Table("Results of the runs, errors added up", columns)
    far = {result.name for result in found.far}
    by_error = sorted(found.results, key=lambda result: -result.deviation.error)
    for result in by_error[:_SHOWN]:
        what = "near" if result.deviation.error else "equal"
        what = "FAR" if result.name in far else what
        table.add(result.name, _number(result.deviation.error), what)
    return table


def _number(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "not a number"


def tables(found: Comparison) -> list[report.Table]:
    return [table for table in (_differences(found), _results(found)) if table.rows]


def page(found: Comparison, target: str = "the model", whose: str = "") -> report.Page:
    lines = [*summary(found), *filter(None, [whose])]
    facts = {"model": target, "tested": found.a, "believed": found.b, "level": found.level}
    section = report.Section("What differs", [lines[0], *lines[2:]], tables=tables(found))
    return report.Page(f"{target}: {found.a} against {found.b}", lines[1:2], facts, [section])
