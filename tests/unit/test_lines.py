"""tools/lines.py: what counts as code, and the table of docs/design/layout.md."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from tests.tool_module import tool_module

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lines() -> ModuleType:
    return tool_module("lines")


def test_the_page_has_the_lines_of_the_tree(lines: ModuleType) -> None:
    """A row may lag behind by a twentieth: not each change of a line is one of the page."""
    rows = re.findall(
        r"^\| (\S+) \| ([\d,]+) \| ([\d,]+) \|$", lines.PAGE.read_text(), re.MULTILINE
    )
    said = {row: [int(n.replace(",", "")) for n in numbers] for row, *numbers in rows}
    counted = lines.count()
    assert said.keys() == {*counted, "**all**"}
    for row, numbers in counted.items():
        for now, then in zip(numbers, said[row], strict=True):
            assert abs(now - then) <= max(100, now / 20), f"{row}: python tools/lines.py --write"
    assert said.pop("**all**") == [sum(column) for column in zip(*said.values(), strict=True)]


def test_no_file_has_more_than_600_lines() -> None:
    """Those that have are named here until they have not."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "*.py", "*.pyi", "*.cpp", "*.h", "*.c", "*.md"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    counts = {
        name: len((ROOT / name).read_text(errors="replace").splitlines())
        for name in listed
        if (ROOT / name).is_file()
    }
    assert {name for name, count in counts.items() if count > 600} == {
        "include/bringup/driver.h",
        "include/bringup/engine.h",
        "src/bringup/ir/graph.py",
    }


def test_code_lines_of_python_have_no_comments_blanks_and_docstrings(lines: ModuleType) -> None:
    text = '"""A module\n\nof two."""\n\n# a comment\nx = """a\nb"""  # behind\n\n'
    text += 'def f():\n    "Return nothing."\n    return [\n        # inside\n        1,\n    ]\n'
    assert lines.python_code_lines(text) == 2 + 1 + 3


def test_code_lines_of_cpp_have_no_comments_and_blanks(lines: ModuleType) -> None:
    text = '/* a\n b */ int x;\n\n// y\nint y = \'"\';  // "\nauto s = R"(\n// kept\n)";\n'
    text += 'auto t = "/* kept";\nint z;\n'
    assert lines.cpp_code_lines(text) == 1 + 1 + 3 + 2
