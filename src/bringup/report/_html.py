"""A page of HTML that stands alone: no script, nothing from the network."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bringup.report._table import Table

_COLOURS = ("#2a7d4f", "#e0a526", "#c0392b", "#8e8e8e", "#2c6fbb")
_STYLE = """
:root { color-scheme: light dark; --text: #1c1c1c; --page: #fff; --line: #e3e3e3; --track: #f1f1f1;
  --dim: #666; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e4e4; --page: #16181b; --line: #33373c;
  --track: #2a2d31; --dim: #9aa0a6; } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  color: var(--text); background: var(--page); }
h1 { font-size: 1.2rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: .6rem 0; }
caption { text-align: left; font-weight: 600; white-space: nowrap; }
th, td { padding: .2rem .7rem .2rem 0; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; overflow-wrap: anywhere; }
th.n, td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.big { font-size: 1.6rem; font-weight: 600; margin-bottom: .3rem; } .note { color: var(--dim); }
.bar { display: flex; align-items: center; gap: .6rem; margin: .15rem 0; }
.bar .label { width: 14rem; overflow-wrap: anywhere; } .bar .track { flex: 1; display: flex;
  height: 1rem; background: var(--track); }
.bar .value { width: 13rem; font-size: .85rem; color: var(--dim); }
.key span { display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 1rem; }
"""


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


@dataclass
class Section:
    """A part of a page: text, then bars, figures, then tables; what is empty is left out.

    Attributes:
        heading: its title.
        text: paragraphs.
        key: what the parts of a bar mean, at most five.
        bars: a chart.
        figures: pictures as SVG, which are not escaped: by `bars`, `intervals`, `curve`.
        tables: tables, each with its title.
    """

    heading: str
    text: list[str] = field(default_factory=list)
    key: Sequence[str] = ()
    bars: list[Bar] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)


@dataclass
class Page:
    """A page.

    Attributes:
        title: its title.
        headline: what is said first: a line in large letters, and others below it.
        facts: what was looked at, by name.
        sections: the rest.
    """

    title: str
    headline: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    sections: list[Section] = field(default_factory=list)


def to_html(page: Page) -> str:
    """Return the page as one text. What comes from outside is escaped.

    Args:
        page: what is written.
    """
    title = html.escape(page.title)
    lines = ["<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8">']
    lines += [f"<title>{title}</title><style>{_STYLE}</style></head><body>", f"<h1>{title}</h1>"]
    lines += [f'<p class="big">{html.escape(words)}</p>' for words in page.headline[:1]]
    lines += [f"<p>{html.escape(words)}</p>" for words in page.headline[1:]]
    if page.facts:
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
            for name, value in page.facts.items()
        )
        lines.append(f"<table>{rows}</table>")
    for section in page.sections:
        lines += _section(section)
    return "\n".join([*lines, "</body></html>"]) + "\n"


def write_html(path: Path, page: Page) -> None:
    """Write the page into a file; one of this name is replaced.

    Args:
        path: the file.
        page: what is written.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(to_html(page), encoding="utf-8")


def _section(section: Section) -> list[str]:
    lines = [f"<h2>{html.escape(section.heading)}</h2>"]
    lines += [f"<p>{html.escape(words)}</p>" for words in section.text]
    if section.key:
        named = "".join(
            f'<span style="background:{colour}"></span>{html.escape(name)}'
            for name, colour in zip(section.key, _COLOURS, strict=False)
        )
        lines.append(f'<p class="key">{named}</p>')
    lines += [_bar(bar) for bar in section.bars]
    lines += section.figures
    for table in section.tables:
        lines += _table(table)
    return lines


def _bar(bar: Bar) -> str:
    parts = "".join(
        f'<div style="width:{100 * part:.2f}%;background:{colour}"></div>'
        for part, colour in zip(bar.parts, _COLOURS, strict=False)
    )
    return (
        f'<div class="bar"><div class="label">{html.escape(bar.label)}</div>'
        f'<div class="track">{parts}</div><div class="value">{html.escape(bar.value)}</div></div>'
    )


def _table(table: Table) -> list[str]:
    kinds = [' class="n"' if column.number else "" for column in table.columns]
    heads = "".join(
        f"<th{kind}>{html.escape(column.heading)}</th>"
        for kind, column in zip(kinds, table.columns, strict=True)
    )
    lines = [f"<table><caption>{html.escape(table.title)}</caption><tr>{heads}</tr>"]
    for row in table.rows:
        cells = "".join(
            f"<td{kind}>{html.escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)
        )
        lines.append(f"<tr>{cells}</tr>")
    lines.append("</table>")
    lines += [f'<p class="note">{html.escape(note)}</p>' for note in table.notes]
    return lines
