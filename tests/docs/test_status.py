"""The status page: its tests exist, and what is said to work names one."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "status.md"
STATES = ("works", "partly: ", "missing", "different", "refused")


def rows() -> list[tuple[str, str, list[str]]]:
    """Feature, state and tests of every row."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and not line.startswith("|---") and cells[0] != "feature":
            found.append((cells[0], cells[1], re.findall(r"`([^`]+)`", cells[2])))
    return found


@cache
def _names_in(file: Path) -> frozenset[str]:
    pattern = r"^TEST\((\w+)\)" if file.suffix == ".cpp" else r"^def (test_\w+)\("
    return frozenset(re.findall(pattern, file.read_text(), re.MULTILINE))


def test_page_has_rows_for_each_of_the_five_systems_and_for_packages() -> None:
    assert PAGE.read_text().count("\n## ") == 6
    assert len(rows()) > 100
    assert len({feature for feature, _, _ in rows()}) == len(rows())


@pytest.mark.parametrize(("feature", "state", "tests"), rows(), ids=[row[0] for row in rows()])
def test_row_has_a_state_and_names_tests_that_exist(
    feature: str, state: str, tests: list[str]
) -> None:
    assert state.startswith(STATES)
    assert tests or state.startswith("missing")
    for named in tests:
        file, _, test = named.partition("::")
        assert test in _names_in(ROOT / "tests" / file), named


def test_the_page_about_pytorchs_reference_backend_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "devices" / "reference-backend.md").read_text()
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", page)
    assert len(named) > 40
    for file, test in named:
        path = file if "/" in file else f"unit/devices/{file}"
        assert test in _names_in(ROOT / "tests" / path), (file, test)
