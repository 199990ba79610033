"""Count lines of source by package: python tools/lines.py [REVISION] [--write]

Code lines are lines without blanks, comments and docstrings. Counts what git tracks under src,
native, include and drivers, in the working tree or in REVISION. --write puts the table into
docs/design/layout.md.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/design/layout.md"
FOLDERS = ("src", "native", "include", "drivers")
HEAD = "| package | code lines | all lines |\n|---|---|---|\n"
TABLE = re.compile(re.escape(HEAD) + r"(?:\|.*\n)+")
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
# A comment of C++, or what may hold the signs of one: a raw string, a string, a character.
_TOKEN = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/)"
    r'|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"'
    r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'",
    re.DOTALL,
)


def python_code_lines(text: str) -> int:
    """Return the number of lines with tokens that are neither comments nor docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def cpp_code_lines(text: str) -> int:
    """Return the number of lines that are not empty without their comments."""

    def without_comment(found: re.Match[str]) -> str:
        return "\n" * found[0].count("\n") if found["comment"] else found[0]

    return sum(1 for line in _TOKEN.sub(without_comment, text).splitlines() if line.strip())


def sources(revision: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield path and text of every source file."""
    listing = ["ls-tree", "-r", "--name-only", revision] if revision else ["ls-files"]
    for path in _git(*listing, "--", *FOLDERS).splitlines():
        if not path.removesuffix(".tmpl").endswith((".py", ".pyi", ".cpp", ".h", ".c")):
            continue
        if revision:
            yield path, _git("show", f"{revision}:{path}")
        elif (ROOT / path).exists():
            yield path, (ROOT / path).read_text()


def package(path: str) -> str:
    """Return the row that a file belongs to: a folder below src/bringup, native or drivers."""
    parts = Path(path).parts[:-1]
    depth = 3 if parts[:2] == ("src", "bringup") or parts[:2] == ("native", "torch") else 2
    return "/".join(parts[:depth])


def count(revision: str | None = None) -> dict[str, tuple[int, int]]:
    """Return code lines and all lines of every package."""
    code: Counter[str] = Counter()
    everything: Counter[str] = Counter()
    for path, text in sources(revision):
        row = package(path)
        # Templates are not Python before they are filled in.
        counted = python_code_lines if path.endswith((".py", ".pyi")) else cpp_code_lines
        code[row] += counted(text)
        everything[row] += len(text.splitlines())
    return {row: (code[row], everything[row]) for row in sorted(everything)}


def table(counts: dict[str, tuple[int, int]]) -> str:
    """Return the counts as a table in Markdown, with their sum."""
    total = tuple(map(sum, zip(*counts.values(), strict=True)))
    rows = [*counts.items(), ("**all**", total)]
    return HEAD + "".join(f"| {row} | {code:,} | {lines:,} |\n" for row, (code, lines) in rows)


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    ).stdout


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", nargs="?")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    text = table(count(arguments.revision))
    if arguments.write:
        PAGE.write_text(TABLE.sub(lambda _: text, PAGE.read_text()))
    print(text, end="")


if __name__ == "__main__":
    main()
