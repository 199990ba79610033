"""Pictures as inline SVG, in the colours of the page that holds them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bringup.report._ratio import Ratio
from bringup.report._template import drawn

_ROW, _MARGIN, _SHOWN = 22, 60, 60  # of a graph: heights, how far arcs go out, nodes at most
_COLOUR, _PEER = "#2c6fbb", "#8e8e8e"
_COLOURS = (_COLOUR, "#e0a526", "#2a7d4f", "#c0392b", "#8e44ad")


@dataclass(frozen=True)
class Bar:
    """A line of a bar chart.

    Attributes:
        label: what it is about.
        parts: of the whole, one for each name in the section's `key`, at most 1 in sum.
        value: what is written beside it.
    """

    label: str
    parts: Sequence[float]
    value: str = ""


def bars(
    rows: Sequence[tuple[str, float, str]], *, title: str = "", peers: Collection[str] = ()
) -> str:
    """Return horizontal bars, from 0.

    Args:
        rows: label, length and what is written beside it.
        title: what is written above.
        peers: the labels whose bars are grey.
    """
    longest = max((value for _, value, _ in rows), default=0.0) or 1.0
    parts = [
        Bar(label, [0.0] * (label in peers) + [value / longest], words)
        for label, value, words in rows
    ]
    return drawn("bars", parts, (_COLOUR, _PEER), title)


def intervals(rows: Sequence[tuple[str, Ratio, str]]) -> str:
    """Return medians with their intervals, and a line where both take the same time.

    Args:
        rows: label, ratio, whose interval is finite, and what is written beside it.
    """
    longest = max([1.0, *(ratio.high for _, ratio, _ in rows)]) * 1.05
    return drawn("intervals", rows, longest, _COLOUR)


def curve(values: Sequence[float], title: str) -> str:
    """Return a line through the values, from 0.

    Args:
        values: at least one.
        title: what they are.
    """
    return drawn("curve", values, title, _COLOUR)


def loglog(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    points: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
) -> str:
    """Return lines and points by their name, both axes logarithmic: a roofline, or a speed by size.

    Args:
        lines: dashed; at least one place in all, and none at or below 0.
        points: each name in a colour of its own.
        x, y: what the axes are.
    """
    named = [*lines.items(), *points.items()]
    (left, right), (low, high) = (
        _decades([place[axis] for _, places in named for place in places]) for axis in (0, 1)
    )

    def part(place: tuple[float, float]) -> tuple[float, float]:
        across, up = map(math.log10, place)
        return (across - left) / (right - left), (up - low) / (high - low)

    placed = [(name, [part(place) for place in places]) for name, places in named]
    count = len(lines)
    steps = [range(left, right + 1), range(low, high + 1)]
    ticks = [[(f"{10.0**n:g}", (n - of[0]) / (of[-1] - of[0])) for n in of] for of in steps]
    return drawn("loglog", f"{y} by {x}", placed[:count], placed[count:], ticks, _COLOURS)


@dataclass(frozen=True)
class GraphNode:
    """A node of a graph that is drawn: its name, its operator, and the names that it reads."""

    name: str
    operator: str
    reads: Collection[str]


def rewrite(before: Sequence[GraphNode], after: Sequence[GraphNode]) -> str:
    """Return two graphs side by side, with arcs to readers: nodes of only one, and neighbours."""
    went, came = "var(--went, #c0392b)", "var(--came, #2a7d4f)"
    graphs = {"before": (before, after, went), "after": (after, before, came)}
    sides = [(title, *_lines_and_arcs(*graph)) for title, graph in graphs.items()]
    return drawn("rewrite", sides, _ROW)


def _lines_and_arcs(
    nodes: Sequence[GraphNode], others: Sequence[GraphNode], colour: str
) -> tuple[list[tuple[str, str]], list[tuple[int, int, int, str]]]:
    """Return lines of text with their colours, and arcs: two heights, how far out, the colour."""
    known = {(node.name, node.operator) for node in others}
    new = {node.name for node in nodes if (node.name, node.operator) not in known}
    near = new | {name for node in nodes if node.name in new for name in node.reads}
    near |= {node.name for node in nodes if new.intersection(node.reads)}
    shown = [node for node in nodes if node.name in near][:_SHOWN]
    lines: list[tuple[str, str]] = []
    places: dict[str, int] = {}
    for is_shown, group in itertools.groupby(nodes, shown.__contains__):
        ones = list(group)
        for node in ones if is_shown else ():
            places[node.name] = len(lines)
            tone = colour if node.name in new else "currentColor"
            lines.append((f"{node.operator}  {node.name}", tone))
        if not is_shown:
            lines.append((f"... {len(ones)} more", "var(--dim, #888)"))
    arcs = [
        (_ROW * start, _ROW * end, min(8 + 4 * (end - start), _MARGIN), lines[end][1])
        for node in shown
        for start, end in ((places.get(name), places[node.name]) for name in node.reads)
        if start is not None
    ]
    return lines, arcs


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Return the powers of ten around the values, at least one decade."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)
