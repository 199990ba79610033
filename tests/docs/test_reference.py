"""The pages that are written from the code are those that the code of now would write."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from tests.tool_module import tool_module

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    return tool_module("write_reference")


@pytest.mark.parametrize("page", ["settings.md", "command-line.md"])
def test_the_page_is_what_the_code_says(writer: ModuleType, page: str) -> None:
    written = (ROOT / "docs" / "reference" / page).read_text()
    assert written == writer.pages()[page], "run `python tools/write_reference.py`"


def test_no_page_of_the_folder_is_left_over(writer: ModuleType) -> None:
    assert {file.name for file in writer.FOLDER.iterdir()} == set(writer.pages())


def test_what_is_set_now_is_no_part_of_the_page(
    writer: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = writer.pages()
    monkeypatch.setenv("BRINGUP_JIT_TIMEOUT", "17")
    assert writer.pages() == before


def test_every_setting_and_every_command_has_a_section(writer: ModuleType) -> None:
    from bringup import settings

    pages = writer.pages()
    for row in settings.table():
        assert f"\n## `{row['variable']}`\n" in pages["settings.md"]
    for command in ("doctor", "try", "cache prune", "passes explain", "new kernel"):
        assert f"\n## `bringup {command} " in pages["command-line.md"]
