"""Pictures as inline SVG, in the colours of the page that holds them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bringup.report._ratio import Ratio
from bringup.report._template import drawn

_COLOUR, _PEER = "#2c6fbb", "#8e8e8e"


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

    Examples:
        >>> from bringup import report
        >>> report.bars([("eager", 2.0, "2 ms"), ("serve", 1.0, "1 ms")]).count("<rect")
        2
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

    Examples:
        >>> from bringup import report
        >>> ratio = report.paired_ratio([2.0] * 9, [1.0] * 9)
        >>> report.intervals([("serve", ratio, "2x")]).count("<circle")
        1
    """
    longest = max([1.0, *(ratio.high for _, ratio, _ in rows)]) * 1.05
    return drawn("intervals", rows, longest, _COLOUR)


def curve(values: Sequence[float], title: str) -> str:
    """Return a line through the values, from 0.

    Args:
        values: at least one.
        title: what they are.

    Examples:
        >>> from bringup import report
        >>> report.curve([1.0, 0.5], "loss by step").count("<line")
        1
    """
    return drawn("curve", values, title, _COLOUR)
