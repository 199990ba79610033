"""Tables, JSON and ratios of times: renders what others return, says what their figures bear out,
and measures nothing itself.

`Table` is rows of text under titled columns; `render` prints it with rich, `to_json` and
`write_json` write any result. `paired_ratio` is the statistics of interleaved rounds.
"""

from __future__ import annotations

from bringup.report._json import finite_fields, to_json, write_json
from bringup.report._ratio import Judgement, Ratio, paired_ratio
from bringup.report._table import Column, Table, render

__all__ = [
    "Column",
    "Judgement",
    "Ratio",
    "Table",
    "finite_fields",
    "paired_ratio",
    "render",
    "to_json",
    "write_json",
]
