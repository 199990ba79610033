"""The pages hang together: the index leads to each, links lead somewhere, pictures can be drawn.

And nobody has to scroll: no line of code or text is longer than 120 characters.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "index.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FOLDERS = (
    *("src", "native", "include", "cmake", "drivers", "tests", "benchmarks", "examples", "tools"),
    "docs",
)
FILES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    *("Makefile", "CMakeLists.txt", "pyproject.toml"),
)
SUFFIXES = {".py", ".pyi", ".h", ".cpp", ".c", ".cu", ".cmake", ".toml", ".tmpl", ".md"}
LONGEST_LINE = 120
SYSTEMS = ("architecture", "devices", "jit", "ops", "passes", "graphs", "engine")
PICTURE = re.compile(r"^```mermaid\n(.*?)^```", re.MULTILINE | re.DOTALL)
NODE = r"(?!(?:graph|end|subgraph|style|class|click|default)\b)[a-z_]+(?:\[\"[^\"\]]+\"\])?"
NODES = rf"{NODE}(?: & {NODE})*"
PICTURE_LINE = re.compile(rf"  {NODES}(?: --> (?:\|\"[^\"|]+\"\| )?{NODES})*")
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def links(document: Path) -> list[str]:
    """Where the document's links to files of this repository lead, as they are written."""
    text = BLOCK.sub("", document.read_text())
    return [link for link in LINK.findall(text) if not link.startswith(("http", "#", "mailto"))]


def anchors(document: Path) -> set[str]:
    """The anchors of a page's headings, made as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_every_link_of_the_document_leads_somewhere(document: Path) -> None:
    for link in links(document):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve()
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_the_index_leads_to_every_page() -> None:
    reached = {(INDEX.parent / link.partition("#")[0]).resolve() for link in links(INDEX)}
    assert set(PAGES) - {INDEX} <= reached


@pytest.mark.parametrize("page", SYSTEMS)
def test_the_design_page_of_the_system_has_one_picture(page: str) -> None:
    text = (ROOT / "docs" / "design" / f"{page}.md").read_text()
    assert len(PICTURE.findall(text)) == 1


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_every_line_of_a_picture_is_one_that_mermaid_reads(document: Path) -> None:
    for picture in PICTURE.findall(document.read_text()):
        kind, *lines = picture.splitlines()
        assert re.fullmatch(r"flowchart (LR|TB)", kind)
        for line in lines:
            assert PICTURE_LINE.fullmatch(line.replace("-->|", "--> |")), line


def written_by_hand() -> list[Path]:
    """Every file of code and text of the repository."""
    found = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*"))
    named = (file for file in found if file.suffix in SUFFIXES or file.name in FILES)
    return [*(ROOT / name for name in FILES), *sorted(named)]


def long_lines(name: str, text: str) -> list[str]:
    """Where lines are too long, rows of tables of a page left out."""
    is_page = name.endswith((".md", ".md.tmpl"))
    return [
        f"{name}:{number}"
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > LONGEST_LINE and not (is_page and line.lstrip().startswith("|"))
    ]


def test_no_line_is_longer_than_120_characters() -> None:
    files = written_by_hand()
    names = {file.name for file in files}
    assert {"README.md", "CHANGELOG.md", "driver.h", "test_pages.py", "index.md"} <= names
    assert "Makefile" in names
    assert [found for file in files for found in long_lines(file.name, file.read_text())] == []


def test_only_a_row_of_a_table_in_a_page_may_be_longer() -> None:
    row, text = "| " + "x" * 120, "x" * 121
    assert long_lines("a.md", f"{row}\n{text}\n{text[1:]}") == ["a.md:2"]
    assert long_lines("a.py", f"{row}\n{text[1:]}") == ["a.py:1"]


# Persons where a part of the program is meant, or a passive without an actor.
LOOSE_WORDS = re.compile(
    r"\b(nobody|somebody|anybody|whoever|meanwhile|(is|are|be|was|were|been) told)\b(?! apart)",
    re.I,
)


def loose_words(path: Path, text: str) -> list[str]:
    return [f"{path.relative_to(ROOT)}: {match[0]}" for match in LOOSE_WORDS.finditer(text)]


def test_pages_name_who_does_what() -> None:
    pages = [path for path in DOCUMENTS if "design" not in path.parts]
    texts = {path: re.sub(r"`[^`]*`", "", path.read_text()) for path in pages}
    assert [found for path, text in texts.items() for found in loose_words(path, text)] == []


def test_sources_name_who_does_what() -> None:
    found = [
        word
        for folder in ("src", "native", "include", "drivers")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".pyi", ".h", ".cpp", ".c", ".tmpl"}
        for word in loose_words(path, path.read_text())
    ]
    assert found == []
