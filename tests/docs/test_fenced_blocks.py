"""Every fenced block of README and docs runs.

The blocks of one document run in order, each in a process of its own, in one temporary folder that
they share (so a block may write a file that the next one uses). `python` and `bash` blocks are run,
`c` and `cpp` blocks are compiled against bringup's headers, `text` and `mermaid` blocks are
pictures (test_pages.py reads the latter). Any other language is a failure: nothing is skipped
silently.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.forked_python import run_forked

from bringup import _native

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
TIME_LIMIT_S = 300


def blocks(document: Path) -> list[tuple[int, str, str]]:
    """Line number, language and text of every fenced block."""
    text = document.read_text()
    return [
        (text.count("\n", 0, match.start()) + 1, match.group(1), match.group(2))
        for match in FENCE.finditer(text)
    ]


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


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_every_fenced_block_of_the_document_runs(document: Path, tmp_path: Path) -> None:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "BRINGUP_SOURCE": str(ROOT),
    }
    for line, language, text in blocks(document):
        if language in {"text", "mermaid"}:
            continue
        done = run_block(language, text, tmp_path, environment)
        where = f"{document.relative_to(ROOT)}:{line} ({language})"
        assert done.returncode == 0, (
            f"{where}:\n{text}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )


def run_block(
    language: str, text: str, folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs one block in a process of its own."""
    if language == "python":
        (folder / "block.py").write_text(text)
        return run_forked(folder / "block.py", environment, timeout=TIME_LIMIT_S)
    return subprocess.run(
        command(language, text, folder),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("print('fine', __name__)", 0, "fine __main__"),
        ("import os; print(os.getcwd(), os.environ.get('HOME', 'no home'))", 0, " no home"),
        ("raise ValueError('broken')", 1, "ValueError: broken"),
        ("import sys; sys.exit(3)", 3, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
        ("import atexit; atexit.register(lambda: print('at the end'))", 0, "at the end"),
    ],
)
def test_python_blocks_tell_how_they_ended(
    text: str, status: int, words: str, tmp_path: Path
) -> None:
    done = run_block("python", text, tmp_path, {"PATH": os.environ["PATH"]})
    assert done.returncode == status
    assert words in done.stdout


def test_python_block_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "block.py"
    program.write_text("import threading; threading.Event().wait()")
    with pytest.raises(subprocess.TimeoutExpired):
        run_forked(program, dict(os.environ), timeout=0.5)
