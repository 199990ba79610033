"""Docstrings begin with a verb; tests/docs/test_public_docstrings.py has what public ones say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import bringup

# How a docstring begins that says what a function is, not what it does.
NO_VERB = re.compile(
    "(A|All|An|Any|Each|Every|Everything|How|None|One|The|What|Where|Whether|Which|Whose|Why)[,:;]?"
    "|(?!This)[A-Z][a-z]+[^s]s"
)

SOURCES = Path(bringup.__file__).parent


def first_words(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each function of a file and the first word of its docstring."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node):
            yield node.name, (ast.get_docstring(node) or "").split()[0]


def test_all_docstrings_of_functions_begin_with_a_verb() -> None:
    found = {
        path.relative_to(SOURCES).as_posix(): name
        for path in SOURCES.rglob("*.py")
        for name, word in first_words(path)
        if NO_VERB.fullmatch(word)
    }
    assert not found
