"""Tables and JSON."""

from __future__ import annotations

import enum
import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from bringup import report


def rendered(table: report.Table, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    report.render(table, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_render_shows_title_headings_cells_and_notes() -> None:
    table = report.Table("Times", [report.Column("who"), report.Column("ms", number=True)])
    table.add("eager", "3.40")
    table.notes.append("medians")
    text = rendered(table)
    for part in ("Times", "who", "ms", "eager", "3.40", "medians"):
        assert part in text


def test_render_takes_brackets_in_cells_and_notes_literally() -> None:
    table = report.Table("t", [report.Column("shape")], notes=["[red]5"])
    table.add("[1, 2]")
    text = rendered(table)
    assert "[1, 2]" in text
    assert "[red]5" in text


def test_render_folds_long_cells_instead_of_cutting_them() -> None:
    table = report.Table("t", [report.Column("path")])
    table.add("x" * 100)
    assert rendered(table, width=40).count("x") == 100


def test_row_with_too_few_cells_is_refused_and_not_added() -> None:
    table = report.Table("Times", [report.Column("who"), report.Column("ms")])
    with pytest.raises(ValueError, match="table 'Times': expected 2 cells, got 1"):
        table.add("eager")
    assert table.rows == []


class Color(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Point:
    x: int
    color: Color
    where: Path


def test_write_json_writes_dataclasses_enums_and_paths_by_value(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    report.write_json(target, {"rows": [Point(1, Color.RED, Path("/a"))], "name": "ü"})
    assert json.loads(target.read_text(encoding="utf-8")) == {
        "rows": [{"x": 1, "color": "red", "where": "/a"}],
        "name": "ü",
    }


def test_json_of_a_foreign_object_names_its_type() -> None:
    with pytest.raises(TypeError, match="cannot write object as JSON"):
        report.to_json({"value": object()})


def test_json_refuses_nan_which_is_not_json() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        report.to_json({"value": float("nan")})


def passes() -> report.Table:
    columns = [
        report.Column("on", fixed=True),
        report.Column("pass", cut=True),
        report.Column("version", fixed=True, least=1),
        report.Column("defined by", least=8),
    ]
    table = report.Table("Passes", columns)
    table.add("off", "MergeProjections", "1", "a folder")
    return table


@pytest.mark.parametrize(
    ("width", "there", "gone"),
    [
        (41, ("off", "MergeProjections", "version", "a folder"), ("no room",)),
        (32, ("off", "MergeProjections", "version", "no room for: defined by"), ("a folder",)),
        (22, ("off", "MergeProjections", "no room for: version"), ("…",)),
        (18, ("off", "MergeP…tions", "no room"), ("MergeProjections",)),
    ],
)
def test_where_there_is_no_room_columns_go_and_names_are_cut_and_nothing_is_cropped(
    width: int, there: tuple[str, ...], gone: tuple[str, ...]
) -> None:
    text = rendered(passes(), width)
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    assert [part for part in there if part not in " ".join(text.split())] == []
    assert [part for part in gone if part in text] == []


def test_a_fixed_text_is_folded_rather_than_cropped() -> None:
    table = report.Table("t", [report.Column("a", fixed=True), report.Column("b", fixed=True)])
    table.add("abcdefghij", "klmnopqrst")
    text = rendered(table, 14)
    assert set("abcdefghijklmnopqrst") <= set(text)
