"""Programs that are forked from a server which has imported torch end, speak and start like those
of a fresh interpreter.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
from pathlib import Path

import pytest
from tests.fork_server import BY_TORCH
from tests.forked_python import output_of, run_forked

GRANDCHILD = """
import subprocess, sys
child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.parametrize(
    ("code", "status", "out", "err"),
    [
        ("print('fine', __name__)", 0, "fine __main__\n", ""),
        ("import sys; sys.exit(3)", 3, "", ""),
        ("raise SystemExit('no more')", 1, "", "no more\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11, "", ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, "", ""),
        ("import os; os.abort()", -6, "", ""),
        ("import atexit; atexit.register(print, 'at the end')", 0, "at the end\n", ""),
        ("class E:\n  def __del__(self): print('gone')\ne = E()", 0, "gone\n", ""),
        (
            "import threading; threading.Thread(target=print, args=('after',)).start()",
            0,
            "after\n",
            "",
        ),
        ("import os; os.write(1, b'out'); os.write(2, b'err')", 0, "out", "err"),
        ("import sys; print(sys.stdin.read(), end='')", 0, "", ""),
    ],
)
def test_a_program_ends_as_it_would_alone(code: str, status: int, out: str, err: str) -> None:
    done = run_forked(code)
    assert (done.returncode, done.stdout, done.stderr) == (status, out, err)


def test_an_exception_is_a_traceback_and_the_status_1() -> None:
    done = run_forked("raise ValueError('broken')")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "Traceback (most recent call last):"
    assert done.stderr.splitlines()[-1] == "ValueError: broken"
    with pytest.raises(AssertionError, match="ValueError: broken"):
        output_of("raise ValueError('broken')")


def test_a_program_has_its_arguments_variables_folder_and_path(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("here = __name__")
    code = "import beside, os, sys; print(sys.argv, os.environ, os.getcwd(), beside.here)"
    variables = {"PATH": os.environ["PATH"], "SAID": "so"}
    done = run_forked(code, "x", environment=variables, folder=tmp_path)
    assert done.stdout == f"{['-c', 'x']} environ({variables}) {tmp_path} beside\n"
    program = tmp_path / "program.py"
    program.write_text(code)
    assert run_forked(program, environment=variables, folder=tmp_path).stdout.startswith(
        str([str(program)])
    )
    search = "import beside; print(beside.here)"
    assert output_of(search, PYTHONPATH=str(tmp_path)) == "beside"


def test_a_program_begins_with_torch_and_nothing_of_bringup() -> None:
    code = """
import os, sys, torch
print(*sorted(name for name in sys.modules if name.startswith("bringup.")))
print(torch._C._get_privateuse1_backend_name(), len(os.listdir("/proc/self/task")))
print(torch.get_num_threads() == len(os.sched_getaffinity(0)) or "OMP_NUM_THREADS" in os.environ)
"""
    parts, place, threads = output_of(code).splitlines()
    assert (parts, place, threads) == (" ".join(sorted(BY_TORCH)), "privateuseone 1", "True")


def test_what_one_program_does_is_not_seen_by_the_next() -> None:
    output_of("from bringup import devices; devices.load_driver('sim')")
    assert output_of("import torch; print(hasattr(torch, 'npu'))") == "False"


def test_a_program_that_takes_too_long_is_killed_with_what_it_started() -> None:
    with pytest.raises(subprocess.TimeoutExpired) as expired:
        run_forked(GRANDCHILD, timeout=3)  # by then it has printed, on a loaded machine too
    assert isinstance(expired.value.output, str)
    with contextlib.suppress(ProcessLookupError):  # it may be gone altogether
        grandchild = os.pidfd_open(int(expired.value.output))
        assert select.select([grandchild], [], [], 60)[0], "it still runs"
        os.close(grandchild)


def test_programs_of_several_threads_run_at_once(tmp_path: Path) -> None:
    """Each waits for the other's file."""
    code = "import pathlib, sys; mine, other = map(pathlib.Path, sys.argv[1:]); mine.touch()\n"
    code += "while not other.exists(): pass\nprint('met')"
    files = [str(tmp_path / name) for name in "ab"]
    told: list[str] = []
    threads = [
        threading.Thread(target=lambda names: told.append(output_of(code, *names)), args=(names,))
        for names in (files, files[::-1])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == ["met", "met"]


@pytest.mark.parametrize(
    "name", ["OMP_NUM_THREADS", "LD_PRELOAD", "BRINGUP_DRIVER", "PYTHONHASHSEED"]
)
def test_a_variable_that_is_read_at_the_start_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is read when a process starts"):
        run_forked("", environment={name: "another"})
