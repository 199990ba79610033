"""Draw one row of benchmarks as bars: ours, and what it was measured against.

    python -m benchmarks serving --json rows.json
    python -m benchmarks._chart rows.json "BERT 1 x 16, serve" TITLE docs/pictures/serving

writes `serving.svg` and what it is drawn from, `serving.json`.
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

_WIDTH, _LEFT, _BAR, _STEP, _TOP = 720, 190, 26, 38, 52
_STYLE = """
  text { font: 15px system-ui, sans-serif; fill: #1f2328 }
  .small { font-size: 12px; fill: #59636e }
  .peer { fill: #afb8c1 } .ours { fill: #1a7f37 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .small { fill: #9198a1 } .peer { fill: #656c76 } .ours { fill: #3fb950 }
  }
"""


def draw(title: str, rows: list[dict[str, Any]]) -> str:
    """Return the SVG of rows of one name: each peer, slowest first, and ours."""
    bars = [(str(row["peer"]), float(row["peer_ns"]) / 1e6) for row in rows]
    bars.sort(key=lambda bar: -bar[1])
    bars.append(("bringup", float(rows[0]["ours_ns"]) / 1e6))
    most = max(milliseconds for _, milliseconds in bars)
    height = _TOP + _STEP * len(bars) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text x="0" y="18">{escape(title)}</text>',
        '<text x="0" y="38" class="small">milliseconds a call, less is better</text>',
    ]
    for index, (name, milliseconds) in enumerate(bars):
        y = _TOP + _STEP * index
        kind = "ours" if name == "bringup" else "peer"
        length = (_WIDTH - _LEFT - 80) * milliseconds / most
        parts += [
            f'<text x="{_LEFT - 12}" y="{y + 18}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{length:.1f}" height="{_BAR}" rx="3" '
            f'class="{kind}"/>',
            f'<text x="{_LEFT + length + 8:.1f}" y="{y + 18}">{milliseconds:.3g} ms</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])


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
