"""`python -m benchmarks [row ...]`: runs rows, prints a table, writes JSON and a page of HTML."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
from pathlib import Path

from rich.console import Console

from benchmarks._chart import bars, time_text
from benchmarks._harness import Row
from bringup import report


def row_names() -> list[str]:
    """Every row module of this folder."""
    return sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_"))


def table(rows: list[Row]) -> report.Table:
    """The rows as people read them."""
    columns = [
        report.Column(heading, number=heading not in ("row", "peer", "met"))
        for heading in ("row", "ours", "peer", "peer's time", "ratio", "budget", "met")
    ]
    notes = [f"{row.name}, {row.peer}: {row.note}" for row in rows if row.note]
    out = report.Table("", columns, notes=notes)
    for row in rows:
        verdict = {None: "", True: "yes", False: "no"}[row.within]
        budget = "" if row.budget is None else f"{row.budget:.3g}"
        ratio = "-" if math.isnan(row.ratio) else f"{row.ratio:.3g}"
        out.add(
            row.name,
            time_text(row.ours_ns),
            row.peer,
            time_text(row.peer_ns),
            ratio,
            budget,
            verdict,
        )
    return out


def page(rows: list[Row]) -> report.Page:
    """The same as a page, with a picture for each name: the peers, and ours."""
    judged = [row.within for row in rows if row.within is not None]
    headline = f"{sum(judged)} of {len(judged)} budgets are met" if judged else f"{len(rows)} rows"
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        if not math.isnan(row.ours_ns + row.peer_ns):
            by_name.setdefault(row.name, []).append(row)
    figures = [bars(name, [row.as_dict() for row in ones]) for name, ones in by_name.items()]
    sections = [
        report.Section("Time of a call", figures=figures),
        report.Section(
            "All rows", ["ratio: ours / peer's, below 1 is faster"], tables=[table(rows)]
        ),
    ]
    return report.Page("bringup benchmarks", [headline], sections=sections)


def main() -> int:
    """Runs the rows named on the command line, or all."""
    names = row_names()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(names)}; default all")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a smoke test")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--html", type=Path, help="also write a page with pictures to this file")
    options = parser.parse_args()
    unknown = [name for name in options.rows if name not in names]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(names)}")
    rows: list[Row] = []
    for name in options.rows or names:
        rows += importlib.import_module(f"benchmarks.{name}").run(quick=options.quick)
    report.render(table(rows), Console(width=150))
    if options.json:
        options.json.write_text(json.dumps([row.as_dict() for row in rows], indent=2) + "\n")
    if options.html:
        command = ["python", "-m", "benchmarks", *sys.argv[1:]]
        report.write_html(options.html, page(rows), command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
