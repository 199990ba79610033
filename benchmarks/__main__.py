"""`python -m benchmarks [row ...]`: runs rows, prints a table, writes JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks._harness import Row


def row_names() -> list[str]:
    """Every row module of this folder."""
    return sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_"))


def _time(nanoseconds: float) -> str:
    if math.isnan(nanoseconds):
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"


def table(rows: list[Row]) -> Table:
    """The rows as people read them."""
    out = Table("row", "ours", "peer", "peer's time", "ratio", "budget", "met")
    for row in rows:
        verdict = {None: "", True: "yes", False: "no"}[row.within]
        budget = "" if row.budget is None else f"{row.budget:.3g}"
        out.add_row(
            row.name,
            _time(row.ours_ns),
            row.peer,
            _time(row.peer_ns),
            "-" if math.isnan(row.ratio) else f"{row.ratio:.3g}",
            budget,
            verdict,
        )
    return out


def main() -> int:
    """Runs the rows named on the command line, or all."""
    names = row_names()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(names)}; default all")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a smoke test")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    unknown = [name for name in options.rows if name not in names]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(names)}")
    rows: list[Row] = []
    for name in options.rows or names:
        rows += importlib.import_module(f"benchmarks.{name}").run(quick=options.quick)
    console = Console(width=150)
    console.print(table(rows))
    for row in rows:
        if row.note:
            console.print(f"{row.name}, {row.peer}: {row.note}")
    if options.json:
        options.json.write_text(json.dumps([row.as_dict() for row in rows], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
