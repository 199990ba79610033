"""Tables, JSON, HTML and ratios of times: renders what others return, says what their figures bear
out, and measures nothing itself.

`Table` is rows of text under titled columns; `render` prints it with rich, `to_json` and
`write_json` write any result; `Page` is sections of text, bars and tables, which `to_html` and
`write_html` write as one page of HTML; `bars`, `intervals`, `curve` and `loglog` are pictures for
it.
`paired_ratio` is the statistics of interleaved rounds.
"""

from __future__ import annotations

from bringup.report._figures import Bar, bars, curve, intervals, loglog
from bringup.report._html import Page, Section, to_html, write_html
from bringup.report._json import finite_fields, to_json, write_json
from bringup.report._ratio import Judgement, Ratio, paired_ratio
from bringup.report._table import Column, Table, render

__all__ = [
    "Bar", "Column", "Judgement", "Page", "Ratio", "Section", "Table", "bars", "curve",
    "finite_fields", "intervals", "loglog", "paired_ratio", "render", "to_html", "to_json",
    "write_html", "write_json",
]  # fmt: skip
