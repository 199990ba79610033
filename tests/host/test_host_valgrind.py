"""Lives of the C++ program under valgrind: nothing is read that is not there, and nothing is lost.

One life here, since each takes seconds; `make valgrind-host` runs them all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.host.programs import STAGE, environment, needs_shared_python, twice, whole

VALGRIND = shutil.which("valgrind")
IS_FULL = os.environ.get("BRINGUP_TEST_HOST_VALGRIND") == "full"
FOUND = 99

pytestmark = [
    needs_shared_python,
    pytest.mark.skipif(STAGE is not None, reason="sanitizers watch the program already"),
    pytest.mark.skipif(VALGRIND is None, reason="valgrind is missing: apt-get install valgrind"),
]


def watched(program: Path, does: str, **more: str) -> tuple[int, str]:
    """The exit status, FOUND where valgrind has found something, and all output."""
    supp = Path(__file__).with_name("valgrind.supp")
    command = [
        *(str(VALGRIND), "--quiet", f"--error-exitcode={FOUND}", f"--suppressions={supp}"),
        *("--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"),
        *("--num-callers=30", str(program), does),
    ]
    done = subprocess.run(
        command,
        env=environment(PYTHONMALLOC="malloc", **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout


def test_valgrind_notices_what_is_lost_and_what_is_gone(program):
    code, said = watched(program, "loses")
    assert code == FOUND
    assert "definitely lost" in said
    code, said = watched(program, "reads_freed")
    assert code == FOUND
    assert "Invalid read" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "does",
    [
        "once",
        *(
            pytest.param(does, marks=pytest.mark.skipif(not IS_FULL, reason="make valgrind-host"))
            for does in (
                *("borrowed", "ended_under_us", "ended_before", "never_started", "rounds"),
                *("threads", "exits", "run_after_shutdown", "everything_at_once", "forks"),
            )
        ),
    ],
)
def test_a_life_is_clean(program, passes_file, does):
    code, said = watched(program, does, TEST_PASS_PATH=passes_file("twice.py", twice()))
    assert code == 0, said


@pytest.mark.slow
@pytest.mark.skipif(not IS_FULL, reason="make valgrind-host")
@pytest.mark.parametrize("does", ["providers", "arguments"])
def test_a_graph_with_all_that_a_program_has_is_clean(program, passes_file, does):
    file = passes_file("twice.py", twice(made="demo::relu"))
    code, said = watched(program, does, TEST_PASS_PATH=file)
    assert code == 0, said


@pytest.mark.slow
@pytest.mark.skipif(not IS_FULL, reason="make valgrind-host")
def test_passes_that_raise_and_keep_handles_are_clean(program, passes_file):
    file = passes_file(
        "keeps.py",
        "KEPT = []\n" + whole("KEPT.extend(graph.find('demo::relu'))", "raise ValueError('no')"),
    )
    code, said = watched(program, "failing", TEST_PASS_PATH=file)
    assert code == 0, said
