"""What may go wrong around passes in a C++ program: each is a clear error or does what is said."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.host.programs import (
    BRIDGE,
    STAGE,
    Passes,
    environment,
    needs_shared_python,
    output,
    twice,
    whole,
)
from tests.installed_package import put_package

pytestmark = needs_shared_python

STANDARD = Path(sysconfig.get_path("stdlib")).name


def waiting(passes_file: Passes, mark: Path) -> str:
    """A pass that says that it has begun, and goes on when it is told to."""
    return passes_file(
        "waits.py",
        whole(
            "import os, pathlib",
            f"pathlib.Path({str(mark)!r} + '.began').touch()",
            f"while not os.path.exists({str(mark)!r} + '.go'):",
            "    pass",
        ),
    )


def asking(passes_file: Passes, *asks: str, keeps_lock: bool = False) -> str:
    """A pass that calls functions of the program."""
    library = "PyDLL" if keeps_lock else "CDLL"
    return passes_file(
        "asks.py",
        whole(
            "import ctypes",
            f"program = ctypes.{library}(None)",
            "program.host_error.restype = ctypes.c_char_p",
            *(f"print('{ask}', program.host_{ask}(), program.host_error())" for ask in asks),
            "import sys; sys.stdout.flush()",
        ),
    )


@pytest.mark.parametrize("keeps_lock", [False, True])
def test_shutdown_from_inside_of_a_pass_is_refused(program, passes_file, keeps_lock):
    file = asking(passes_file, "shutdown", "state", keeps_lock=keeps_lock)
    said = output(program, "once", TEST_PASS_PATH=file)
    assert re.search(r"shutdown 7 b'1 threads use Python just now", said)
    assert "state 1 b" in said
    assert "run succeeded" in said
    assert said.endswith("state 3\nend\n")


@pytest.mark.parametrize("keeps_lock", [False, True])
def test_a_pass_may_end_its_round_and_begin_another(program, passes_file, keeps_lock):
    file = asking(passes_file, "unload", "load", keeps_lock=keeps_lock)
    said = output(program, "failing", TEST_PASS_PATH=file)
    assert said.count("unload 0") == said.count("load 0") - said.count("unload 0") == 2
    assert said.count("run succeeded") == 2


def test_a_pass_may_run_passes_over_another_graph(program, passes_file):
    file = passes_file(
        "runs.py",
        "IS_RUNNING = []\n"
        + whole(
            "import ctypes, sys",
            "if not IS_RUNNING:",
            "    IS_RUNNING.append(True)",
            "    print('inner', ctypes.CDLL(None).host_run())",
            "    sys.stdout.flush()",
        ),
    )
    said = output(program, "once", TEST_PASS_PATH=file)
    assert "inner 0" in said
    assert "run succeeded" in said


def test_a_run_keeps_its_passes_when_another_thread_unloads_them(program, passes_file, tmp_path):
    mark = tmp_path / "mark"
    said = output(
        program,
        "unload_meanwhile",
        TEST_PASS_PATH=waiting(passes_file, mark),
        TEST_MARK=str(mark),
    )
    assert said.index("unloaded\n") < said.index("pass Whole outcome=0")
    assert said.count("pass Whole") == 1  # the second run has none
    assert said.count("run succeeded") == 2
    assert "loaded 1" in said


def test_after_the_shutdown_runs_go_on_without_python_and_loading_says_why(program, passes_file):
    file = passes_file("twice.py", twice())
    said = output(program, "run_after_shutdown", TEST_PASS_PATH=file)
    assert "run succeeded" in said
    assert "demo::relu demo::relu" in said
    assert re.search(r"load 7: Python was shut down in this process", said)
    assert re.search(r"command 7: Python was shut down in this process", said)


def test_threads_may_load_unload_run_and_ask_at_once(program, passes_file):
    file = passes_file("twice.py", twice())
    said = output(program, "everything_at_once", TEST_PASS_PATH=file)
    assert "loaded 1" in said
    assert "pass Twice outcome=1 matches=1" in said


def test_runs_while_python_is_shut_down_have_their_passes_or_say_why_not(program, passes_file):
    said = output(program, "runs_until_shutdown", TEST_PASS_PATH=passes_file("twice.py", twice()))
    assert said == "state 3\nend\n"


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def again(): again()\n        again()", "RecursionError"),
        ("raise BaseException('x')", "BaseException: x"),
    ],
)
def test_what_no_pass_should_raise_fails_the_pass_alone(program, passes_file, statement, words):
    said = output(program, "failing", TEST_PASS_PATH=passes_file("raises.py", whole(statement)))
    assert "pass Whole outcome=3" in said
    assert words in said
    assert said.count("run failed") == 2
    assert "loaded again 1" in said


def test_a_pass_that_ends_the_process_ends_it(program, passes_file):
    file = passes_file("exits.py", whole("import os; os._exit(9)"))
    assert "run" not in output(program, "once", code=9, TEST_PASS_PATH=file)


def test_a_module_of_passes_that_exits_is_an_error_of_loading(program, passes_file):
    file = passes_file("exits.py", "import sys; sys.exit(3)\n")
    said = output(program, "load_only", code=3, TEST_PASS_PATH=file)
    assert "error: " in said
    assert "SystemExit" in said


@pytest.mark.skipif(STAGE is None, reason="make asan-host")
@pytest.mark.parametrize(
    ("does", "words"), [("loses", "LeakSanitizer"), ("reads_freed", "heap-use-after-free")]
)
def test_sanitizers_notice_what_is_lost_and_what_is_gone(program, does, words):
    done = subprocess.run([program, does], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert words in done.stderr


def begun(program: Path, does: str, mark: Path, **more: str) -> subprocess.Popen[str]:
    """The program, once its pass has begun."""
    made = subprocess.Popen(
        [program, does],
        env=environment(TEST_MARK=str(mark), **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # What runs in the background of a shell ignores it, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not Path(f"{mark}.began").exists():
        assert made.poll() is None
    return made


def test_ctrl_c_ends_a_program_that_does_not_handle_it_though_a_pass_runs(
    program, passes_file, tmp_path
):
    mark = tmp_path / "mark"
    process = begun(program, "once", mark, TEST_PASS_PATH=waiting(passes_file, mark))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=240)
    assert process.returncode == -signal.SIGINT


def test_a_program_keeps_its_own_handler_of_ctrl_c(program, passes_file, tmp_path):
    mark = tmp_path / "mark"
    process = begun(program, "handles_signals", mark, TEST_PASS_PATH=waiting(passes_file, mark))
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert "run succeeded" in said


def test_a_forked_child_has_the_passes_too(program, passes_file):
    said = output(program, "forks", TEST_PASS_PATH=passes_file("twice.py", twice()))
    assert re.findall(r"matches=(\d)", said) == ["1", "2", "2", "1"]
    assert "child loaded 1" in said
    assert "child 0" in said


def test_a_child_forked_while_a_thread_ran_a_pass_is_refused_python(program, passes_file, tmp_path):
    mark = tmp_path / "mark"
    said = output(
        program,
        "forks_during_a_run",
        TEST_PASS_PATH=waiting(passes_file, mark),
        TEST_MARK=str(mark),
    )
    for what in ("load", "run", "shutdown"):
        assert re.search(rf"child {what} 7: this process was forked while a thread used", said), (
            said
        )
    assert "run succeeded" in said  # the parent's


def test_shutdown_names_the_threads_that_it_waits_for(program, passes_file):
    file = passes_file(
        "threads.py",
        "import logging, threading\n"
        "go = threading.Event()\n"
        "threading.Thread(target=go.wait, name='forgotten').start()\n"
        "class Ends(logging.StreamHandler):\n"
        "    def emit(self, record):\n"
        "        super().emit(record)\n"
        "        go.set()\n"
        "logging.getLogger('bringup.passes').addHandler(Ends())\n" + twice(),
    )
    said = output(program, "once", TEST_PASS_PATH=file)
    assert "python_shutdown waits for threads that passes have started: forgotten" in said
    assert "state 3" in said


def test_threads_that_are_daemons_do_not_keep_the_shutdown(program, passes_file):
    file = passes_file(
        "threads.py",
        "import threading\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n" + twice(),
    )
    said = output(program, "once", TEST_PASS_PATH=file)
    assert "state 3" in said
    assert "python_shutdown waits" not in said


def test_a_folder_of_sys_path_that_is_not_there_does_no_harm(program, passes_file, tmp_path):
    (tmp_path / "file.txt").write_text("no folder")
    paths = f"{tmp_path / 'missing'}:{tmp_path / 'file.txt'}::"
    file = passes_file("twice.py", twice())
    assert "loaded 1" in output(program, "once", TEST_PASS_PATH=file, TEST_SYS_PATH=paths)


def test_a_pass_path_that_is_not_there_is_an_error(program, tmp_path):
    missing = str(tmp_path / "missing.py")
    assert missing in output(program, "load_only", code=3, TEST_PASS_PATH=missing)


def test_a_wrong_pythonhome_is_an_error_and_not_the_end_of_the_program(program, tmp_path):
    said = output(program, "load_only", code=3, PYTHONHOME=str(tmp_path))
    assert f"PYTHONHOME is {tmp_path}, where no lib/{STANDARD} is" in said


def test_a_right_pythonhome_is_taken(program, passes_file):
    file = passes_file("twice.py", twice())
    assert "loaded 1" in output(program, "once", TEST_PASS_PATH=file, PYTHONHOME=sys.base_prefix)


def test_a_python_program_that_is_not_there_is_an_error(program, tmp_path):
    missing = str(tmp_path / "python")
    said = output(program, "load_only", code=3, TEST_PYTHON_PROGRAM=missing)
    assert f"{missing} is no {STANDARD}, which the package beside the bridge is for" in said


def test_a_python_program_of_another_version_than_its_library_is_an_error(program, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib/python3.99").mkdir(parents=True)
    (tmp_path / "lib/python3.99/os.py").touch()
    (tmp_path / "bin/python").touch()
    said = output(program, "load_only", code=3, TEST_PYTHON_PROGRAM=str(tmp_path / "bin/python"))
    assert f"bin/python is no {STANDARD}, which the package beside the bridge is for" in said


def other_python() -> Path | None:
    """A shared library of another minor version, where pyenv has one."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    own = sysconfig.get_config_var("INSTSONAME")
    found = sorted(versions.glob("3.1*/lib/libpython3.1*.so.1.0"))
    return next((path for path in found if path.name != own), None)


@pytest.mark.skipif(other_python() is None, reason="no shared library of another Python here")
@pytest.mark.skipif(STAGE is not None, reason="what that Python leaks is its own")
def test_a_program_whose_own_python_is_of_another_version_is_told_which_fits(
    program, passes_file, tmp_path
):
    library = other_python()
    assert library is not None
    package = put_package(tmp_path)
    said = output(
        program,
        "borrowed",
        code=3,
        TEST_LIBPYTHON=str(library),
        TEST_PROGRAM=str(library.parents[1] / "bin/python3"),
        TEST_PASS_PATH=passes_file("twice.py", twice()),
        TEST_BRIDGE=str(package.with_name(BRIDGE.name)),
    )
    assert re.search(r"cannot be imported by Python 3\.\d+", said), said
    assert re.search(r"_core\.cpython-3\d+-.*Python", said), said
