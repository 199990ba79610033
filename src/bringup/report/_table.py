"""Tables of text, printed with rich: for want of room columns are left out and names cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bringup.report._template import drawn

_BETWEEN = 2  # spaces between columns
_LEAST = 12  # places of a column that may be folded or cut, unless it says so itself


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        heading: its heading.
        number: whether it stands right; numbers are never folded.
        fixed: whether its texts stay in one line as long as there is room for them.
        least: it is left out, and a note names it, where fewer places than these remain for it;
            0: it is always there.
        cut: whether texts are cut in the middle, instead of folded, where there is no room; neither
            `number` nor `fixed`.
    """

    heading: str
    number: bool = False
    fixed: bool = False
    least: int = 0
    cut: bool = False


@dataclass
class Table:
    """A titled table. Every row has one cell per column.

    Attributes:
        title: printed above it.
        columns: its columns, from the left.
        rows: the texts of the cells, row by row.
        notes: printed below, a line each.
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

    def _repr_html_(self) -> str:
        return drawn("table", self)


def render(table: Table, console: Console) -> None:
    """Print the table. Cells are shown as they are: brackets in them are not markup.

    Args:
        table: what is printed.
        console: where.
    """
    room = console.width + 1  # behind the last column there is one space less
    shown, widths = _layout(table, room)
    fits = sum(widths[at] for at in shown) <= room
    drawn = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in (table.columns[at] for at in shown):
        justify: Literal["left", "right"] = "right" if column.number else "left"
        whole = column.number or column.cut or (column.fixed and fits)
        drawn.add_column(column.heading, justify=justify, overflow="fold", no_wrap=whole)
    for row in table.rows:
        cells = (
            middle_cut(row[at], widths[at] - _BETWEEN) if table.columns[at].cut else row[at]
            for at in shown
        )
        drawn.add_row(*(Text(cell) for cell in cells))
    if table.title:
        console.print(Text(f"\n{table.title}", style="bold"))
    console.print(drawn)
    left_out = [one.heading for at, one in enumerate(table.columns) if at not in shown]
    notes = list(table.notes)
    if left_out:
        notes.append(f"no room for: {', '.join(left_out)} (a wider terminal, or --json)")
    for note in notes:
        console.print(Text(f"  {note}", style="dim"))


def _layout(table: Table, room: int) -> tuple[list[int], list[int]]:
    """Return which columns are shown and how wide: unfolded whole, others what they must have."""
    wanted, least = [], []
    for at, column in enumerate(table.columns):
        lines = [column.heading, *(line for row in table.rows for line in row[at].splitlines())]
        wanted.append(_BETWEEN + max(map(cell_len, lines)))
        must = wanted[at]
        if not (column.number or column.fixed):
            must = column.least or _LEAST
            if column.least and not column.cut:  # no word is broken
                must = max([must, *(cell_len(word) for line in lines for word in line.split())])
            must = min(must + _BETWEEN, wanted[at])
        least.append(must)
    names = [at for at, column in enumerate(table.columns) if column.cut]
    shown = list(range(len(wanted)))
    needed = [at for at in names if not table.columns[at].least]
    widths = [wanted[at] if at in needed else least[at] for at in shown]
    for at in [at for at in reversed(shown) if table.columns[at].least]:
        if sum(widths[at] for at in shown) > room:
            shown.remove(at)
    for at in names:
        spare = room - sum(widths[at] for at in shown)
        widths[at] = min(max(widths[at] + spare, least[at]), wanted[at])
    return shown, widths


def middle_cut(text: str, width: int) -> str:
    """Return the text, without its middle where it is wider than `width`."""
    if cell_len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"
