"""Tables and JSON: renders what others return, measures and decides nothing.

`Table` is rows of text under titled columns; `render` prints it with rich, `to_json` and
`write_json` write any result.
"""

from __future__ import annotations

from bringup.report._json import finite_fields, to_json, write_json
from bringup.report._table import Column, Table, render

__all__ = ["Column", "Table", "finite_fields", "render", "to_json", "write_json"]
