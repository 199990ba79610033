"""Tables of text, printed with rich. A cell is text already: callers format numbers, as they know
their unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text


@dataclass(frozen=True)
class Column:
    """A column's heading. Numbers stand right; they and `fixed` texts are never folded."""

    heading: str
    number: bool = False
    fixed: bool = False


@dataclass
class Table:
    """A titled table. Every row has one cell per column; `notes` are printed below, a line each.

    Examples:
        >>> from rich.console import Console
        >>> from bringup import report
        >>> columns = [report.Column("name"), report.Column("ms", number=True)]
        >>> report.render(report.Table("Times", columns, [("eager", "1.5")]), Console(quiet=True))
    """

    title: str
    columns: Sequence[Column]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        """Append a row. Raises `ValueError` when the number of cells is not that of the columns."""
        if len(cells) != len(self.columns):
            raise ValueError(
                f"table {self.title!r}: expected {len(self.columns)} cells, "
                f"got {len(cells)}: {cells}"
            )
        self.rows.append(cells)


def render(table: Table, console: Console) -> None:
    """Print the table. Cells are shown as they are: brackets in them are not markup.

    Args:
        table: what is printed.
        console: where.
    """
    drawn = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in table.columns:
        fixed = column.number or column.fixed
        justify: Literal["left", "right"] = "right" if column.number else "left"
        drawn.add_column(column.heading, justify=justify, overflow="fold", no_wrap=fixed)
    for row in table.rows:
        drawn.add_row(*(Text(cell) for cell in row))
    console.print(Text(f"\n{table.title}", style="bold"))
    console.print(drawn)
    for note in table.notes:
        console.print(Text(f"  {note}", style="dim"))
