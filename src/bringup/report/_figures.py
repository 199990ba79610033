"""Pictures as inline SVG, in the colours of the page that holds them."""

from __future__ import annotations

import html
from collections.abc import Sequence

from bringup.report._ratio import Ratio

_WIDTH, _LINE, _LEFT, _RIGHT = 800, 26, 150, 260
_PLOT = _WIDTH - _LEFT - _RIGHT
_COLOUR = "#2c6fbb"


def _svg(height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" style="max-width:100%" role="img" '
        f'aria-label="{html.escape(title)}" font-size="13" fill="currentColor">{"".join(parts)}'
        "</svg>"
    )


def _labelled(number: int, label: str, words: str, shape: str) -> str:
    middle = number * _LINE + _LINE // 2
    return (
        f'<text x="{_LEFT - 8}" y="{middle + 4}" text-anchor="end">{html.escape(label)}</text>'
        f'{shape}<text x="{_LEFT + _PLOT + 8}" y="{middle + 4}">{html.escape(words)}</text>'
    )


def bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """Return horizontal bars, from 0.

    Args:
        rows: label, length and what is written beside it.

    Examples:
        >>> from bringup import report
        >>> report.bars([("eager", 2.0, "2 ms"), ("serve", 1.0, "1 ms")]).count("<rect")
        2
    """
    longest = max((value for _, value, _ in rows), default=0.0) or 1.0
    parts = []
    for number, (label, value, words) in enumerate(rows):
        shape = (
            f'<rect x="{_LEFT}" y="{number * _LINE + 4}" height="{_LINE - 8}" '
            f'width="{_PLOT * value / longest:.1f}" fill="{_COLOUR}"/>'
        )
        parts.append(_labelled(number, label, words, shape))
    return _svg(len(rows) * _LINE, "bars", parts)


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
    at = _LEFT + _PLOT / longest
    height = len(rows) * _LINE
    parts = [
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height}" stroke="currentColor" '
        'stroke-dasharray="3 3"/>'
    ]
    for number, (label, ratio, words) in enumerate(rows):
        low, middle, high = (
            _LEFT + _PLOT * value / longest for value in (ratio.low, ratio.median, ratio.high)
        )
        y = number * _LINE + _LINE // 2
        shape = (
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" stroke="{_COLOUR}" '
            f'stroke-width="3"/><circle cx="{middle:.1f}" cy="{y}" r="5" fill="{_COLOUR}"/>'
        )
        parts.append(_labelled(number, label, words, shape))
    return _svg(height, "ratios with their intervals", parts)


def curve(values: Sequence[float], title: str) -> str:
    """Return a line through the values, from 0.

    Args:
        values: at least one.
        title: what they are.

    Examples:
        >>> from bringup import report
        >>> report.curve([1.0, 0.5], "loss by step").count("<polyline")
        1
    """
    height, most = 160, max(values) or 1.0
    step = _PLOT / max(len(values) - 1, 1)
    points = " ".join(
        f"{_LEFT + number * step:.1f},{height - (height - 10) * value / most:.1f}"
        for number, value in enumerate(values)
    )
    line = f'<polyline points="{points}" fill="none" stroke="{_COLOUR}" stroke-width="2"/>'
    ends = (
        f'<text x="{_LEFT - 8}" y="16" text-anchor="end">{values[0]:.3g}</text>'
        f'<text x="{_LEFT + _PLOT + 8}" y="{height - 4}">{values[-1]:.3g}</text>'
        f'<text x="{_LEFT + _PLOT + 8}" y="16">{html.escape(title)}</text>'
    )
    return _svg(height, title, [line, ends])
