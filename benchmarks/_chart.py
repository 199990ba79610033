"""Draw one row of benchmarks as bars: ours, and what it was measured against.

    python -m benchmarks serving --json rows.json
    python -m benchmarks._chart rows.json "BERT 1 x 16, serve" TITLE docs/pictures/serving

writes `serving.svg` and what it is drawn from, `serving.json`.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from bringup import report

_STYLE = """<style>
svg { color: #1f2328; font: 14px system-ui, sans-serif }
@media (prefers-color-scheme: dark) { svg { color: #f0f6fc } }
</style>"""


def time_text(nanoseconds: float) -> str:
    """Return a time as people read it."""
    if math.isnan(nanoseconds):
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"


def bars(title: str, rows: list[dict[str, Any]]) -> str:
    """Return the picture of rows of one name: each peer, slowest first, and ours."""
    times = sorted(((str(row["peer"]), float(row["peer_ns"])) for row in rows), key=lambda x: -x[1])
    times.append(("bringup", float(rows[0]["ours_ns"])))
    drawn = [(name, nanoseconds, time_text(nanoseconds)) for name, nanoseconds in times]
    return report.bars(drawn, title=title, peers=[str(row["peer"]) for row in rows])


def draw(title: str, rows: list[dict[str, Any]]) -> str:
    """Return the picture as a file of its own, which has a width and colours of its own."""
    svg = str(bars(title, rows)).replace(
        'width="100%"', 'xmlns="http://www.w3.org/2000/svg" width="720"', 1
    )
    return svg.replace("<title>", f"{_STYLE}<title>")


def main() -> None:
    """Draw a row of a file of results."""
    file, name, title, target = sys.argv[1:]
    rows = [row for row in json.loads(Path(file).read_text()) if row["name"] == name]
    if not rows:
        sys.exit(f"{file} has no row {name!r}")
    picture = Path(target)
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.with_suffix(".svg").write_text(draw(title, rows))
    drawn = json.dumps({"title": title, "rows": rows}, indent=1)
    picture.with_suffix(".json").write_text(f"{drawn}\n")


if __name__ == "__main__":
    main()
