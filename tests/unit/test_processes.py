"""Supervised programs: what they print, when they are ended, and how that is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bringup._processes import end, ending, output_within, started

PRINTS = "import sys; print('out'); print('err', file=sys.stderr)"


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_output_of_a_program_that_ends_in_time_with_its_errors_in_it() -> None:
    with started(python(PRINTS)) as process:
        output, in_time = output_within(process, 60)
    assert (sorted(output.split()), in_time, process.returncode) == ([b"err", b"out"], True, 0)


def test_errors_can_go_elsewhere() -> None:
    with started(python(PRINTS), errors=subprocess.DEVNULL) as process:
        assert output_within(process, 60)[0] == b"out\n"


def test_a_program_out_of_time_is_killed_with_what_it_started() -> None:
    script = "tail -f /dev/null & echo here; wait"
    with started(["sh", "-c", script]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
        _, in_time = output_within(process, 0)
    assert (in_time, process.returncode) == (False, -signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=240)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []


def test_a_program_that_takes_input_is_answered_and_ended_with_the_block() -> None:
    script = "print(input(), flush=True); import signal; signal.pause()"
    with started(python(script), takes_input=True) as one:
        assert one.stdin is not None
        assert one.stdout is not None
        one.stdin.write(b"asked\n")
        one.stdin.flush()
        assert one.stdout.readline() == b"asked\n"
    assert one.returncode == -signal.SIGKILL


def test_a_program_has_no_input_unless_it_takes_some() -> None:
    with started(python("import sys; print(sys.stdin.read() == '')")) as process:
        assert output_within(process, 60) == (b"True\n", True)


def test_a_program_with_grace_may_end_itself() -> None:
    script = (
        "import signal; wanted = {signal.SIGTERM}\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, wanted)\n"
        "print('ready', flush=True); signal.sigwait(wanted); print('ended'); raise SystemExit(4)"
    )
    with started(python(script)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        end(process, grace=60)
        assert process.stdout.read() == b"ended\n"
    assert process.returncode == 4


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-signal.SIGSEGV, "SIGSEGV"),
        (-(signal.SIGRTMIN + 1), f"signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_ending_names_the_signal_or_the_code(code: int, words: str) -> None:
    assert ending(code) == words


def test_only_the_owner_starts_processes() -> None:
    source = Path(__file__).parents[2] / "src/bringup"
    starting = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if "subprocess.Popen(" in path.read_text()
    }
    assert starting <= {"_processes.py", f"devices{os.sep}_replay_process.py"}
