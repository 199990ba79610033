"""Every fenced block of README and docs runs.

The blocks of one document run in order, each in a process of its own, in one temporary folder that
they share (so a block may write a file that the next one uses). `python` and `bash` blocks are run,
and what is Python in them is forked from a server; `c` and `cpp` blocks are compiled against
bringup's headers, `text` and `mermaid` blocks are pictures (test_pages.py reads the latter). Any
other language is a failure: nothing is skipped silently. What stands behind `#>` is printed, with
anything in the place of `...`.

The processes of a twentieth of the blocks end like any other, and those of the rest without
destructors: they would take a third of the time, and `run_forked` has them in all other tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.forked_commands import ENDS_AT_ONCE, stand_ins
from tests.forked_python import PACKAGES, run_forked
from tests.sweeps.support import part

from bringup import _native

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
# They show what is in the cache, and what is not.
OWN_CACHE = {ROOT / "docs" / "jit" / name for name in ("prebuild.md", "coming-from.md")}
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"  #> (.*)$", re.MULTILINE)
TIME_LIMIT_S = 300


def blocks(document: Path) -> list[tuple[int, str, str]]:
    """Line number, language and text of every fenced block."""
    text = document.read_text()
    return [
        (text.count("\n", 0, match.start()) + 1, match.group(1), match.group(2))
        for match in FENCE.finditer(text)
    ]


BLOCKS = [(document, line) for document in DOCUMENTS for line, _, _ in blocks(document)]
WITH_DESTRUCTORS = part(BLOCKS)


def command(language: str, text: str, folder: Path) -> list[str]:
    """How to run a block that is no Python."""
    if language == "bash":
        return ["bash", "-euo", "pipefail", "-c", text]
    if language in {"c", "cpp"}:
        (folder / f"block.{language}").write_text(text)
        compiler = shutil.which("cc" if language == "c" else "c++")
        assert compiler is not None, "the tests need a C and a C++ compiler: apt-get install g++"
        return [compiler, "-fsyntax-only", f"-I{_native.include_dir()}", f"block.{language}"]
    known = "python, bash, c, cpp, mermaid or text"
    raise AssertionError(f"a fenced block is in {language!r}: use {known}")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], int]:
    """Return the variables and the open file of shells whose Python commands are forks."""
    return stand_ins(tmp_path_factory.mktemp("commands"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_every_fenced_block_of_the_document_runs(
    document: Path, tmp_path: Path, shell: tuple[dict[str, str], int]
) -> None:
    environment = os.environ | shell[0] | {"BRINGUP_SOURCE": str(ROOT)}
    if document in OWN_CACHE:
        environment["BRINGUP_CACHE_DIR"] = str(tmp_path / "kernels")
    for line, language, text in blocks(document):
        if language in {"text", "mermaid"}:
            continue
        variables = dict(environment)
        if (document, line) not in WITH_DESTRUCTORS:
            variables[ENDS_AT_ONCE] = "1"
        done = run_block(language, text, tmp_path, variables, shell[1])
        where = f"{document.relative_to(ROOT)}:{line} ({language})"
        assert done.returncode == 0, (
            f"{where}:\n{text}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )
        for shown in SHOWN.findall(text):
            said = re.escape(shown).replace(re.escape("..."), ".*")
            assert re.search(f"^{said}$", done.stdout, re.MULTILINE), f"{where}: {done.stdout}"


def run_block(
    language: str, text: str, folder: Path, environment: dict[str, str], server: int
) -> subprocess.CompletedProcess[str]:
    """Runs one block in a process of its own."""
    if language == "python":
        (folder / "block.py").write_text(text)
        return run_forked(
            folder / "block.py",
            environment=environment,
            folder=folder,
            timeout=TIME_LIMIT_S,
            preload=PACKAGES,
            ends_at_once=ENDS_AT_ONCE in environment,
        )
    return subprocess.run(
        command(language, text, folder),
        cwd=folder,
        env=environment,
        pass_fds=[server],
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
