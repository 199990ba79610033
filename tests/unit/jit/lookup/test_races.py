"""Many processes that want one kernel at once, and processes that die while they build it.

The compiler is a script around the real one that notes each build, so that builds can be counted
and killed at a known point; nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bringup import jit
from bringup.jit.files.identity import next_file_time_ns, stamp

REPOSITORY = Path(__file__).parents[4]
RANKS = 8
ROUNDS = 13  # 8 x 13 = 104 cold starts

# A rank compiles each source that it is told, calls the kernel, and says what it got.
RANK = """
import ctypes, sys
from bringup import _native, jit
entry = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)
for line in sys.stdin:
    try:
        binary = jit.compile(jit.Source(line.strip()))
        status = entry(_native.core().kernel_address(binary.kernel_id))(None, 0, None)
        print("ok", status, binary.key, flush=True)
    except Exception as error:
        print("failed", repr(error), flush=True)
"""


class Ranks:
    """Processes of one job, started and imported before the first source is sent."""

    def __init__(self, count: int) -> None:
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", RANK],
                env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]

    def send(self, source: Path) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{source}\n")
            process.stdin.flush()

    def answers(self) -> list[str]:
        found = []
        for process in self.processes:
            assert process.stdout is not None
            found.append(process.stdout.readline().strip())
        return found

    def kill(self, index: int) -> None:
        process = self.processes.pop(index)
        process.send_signal(signal.SIGKILL)
        process.communicate()

    def close(self) -> None:
        for process in self.processes:
            process.communicate(timeout=240)


@contextlib.contextmanager
def ranks(count: int) -> Iterator[Ranks]:
    job = Ranks(count)
    try:
        yield job
    finally:
        job.close()


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Compiler:
    """The real compiler, counted; `slow` builds take a second more, `stuck` ones wait for ever."""

    def __init__(self, folder: Path) -> None:
        self.path, self.notes = folder / "counted-c++", folder / "builds"
        self.becomes("true")

    def becomes(self, before: str) -> None:
        """What a build does before the real compiler runs; the script stays the same file."""
        (self.path.parent / "before.sh").write_text(before)
        if not self.path.exists():
            self.path.write_text(
                f'#!/bin/sh\ncase " $* " in *" -o "*) echo $$ >> {self.notes};'
                f' . {self.path.parent}/before.sh;; esac\nexec c++ "$@"\n'
            )
            self.path.chmod(0o755)

    def builds(self) -> int:
        return len(self.notes.read_text().splitlines()) if self.notes.exists() else 0

    def wait_for_build(self, number: int) -> int:
        """The process number of a build, once it has begun."""
        end = time.monotonic() + 120
        while self.builds() < number:
            assert time.monotonic() < end, "no build began"
            time.sleep(0.005)
        return int(self.notes.read_text().splitlines()[number - 1])


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    compiler = Compiler(tmp_path)
    monkeypatch.setenv("BRINGUP_JIT_CXX", str(compiler.path))
    return compiler


def source(folder: Path, number: int) -> Path:
    path = folder / f"kernel_{number}.c"
    path.write_text(f"int run(void) {{ return {number}; }}\n")
    return path


def test_a_hundred_cold_starts_of_eight_ranks_build_once_and_all_load(
    tmp_path: Path, compiler: Compiler
) -> None:
    """Atomic publication, and one compile a kernel across processes."""
    with ranks(RANKS) as job:
        for number in range(ROUNDS):
            job.send(source(tmp_path, number))
            answers = job.answers()
            assert len(set(answers)) == 1, answers
            assert answers[0].startswith(f"ok {number} ")
            assert compiler.builds() == number + 1
    assert len(jit.cache().entries()) == ROUNDS


def test_a_builder_that_is_killed_delays_the_next_run_by_less_than_two_compiles(
    tmp_path: Path, compiler: Compiler
) -> None:
    """kill -9 in the middle of a build. Compiles take a second more here, and there are three
    attempts, so that the machine's load does not decide.
    """
    compiler.becomes("sleep 1")
    start = time.monotonic()
    jit.compile(jit.Source(source(tmp_path, 0)))
    one_compile = time.monotonic() - start
    waited = (wait_for_a_killed_builder(tmp_path, compiler, number) for number in (1, 2, 3))
    assert any(seconds < 2 * one_compile for seconds in waited)


def wait_for_a_killed_builder(tmp_path: Path, compiler: Compiler, number: int) -> float:
    """Kill the builder of a source; return the seconds in which another process has its kernel."""
    before = compiler.builds()
    with ranks(2) as job:
        first, second = job.processes
        job.processes = [first]
        path = source(tmp_path, number)
        job.send(path)
        compiler.wait_for_build(before + 1)
        job.kill(0)
        job.processes = [second]
        start = time.monotonic()
        job.send(path)
        (answer,) = job.answers()
        waited = time.monotonic() - start
    assert answer.startswith(f"ok {number} ")
    assert compiler.builds() == before + 2
    return waited


def test_when_a_builder_is_killed_one_of_those_who_wait_takes_over(
    tmp_path: Path, compiler: Compiler
) -> None:
    """Nobody fails, and the work is done once more, not once by each."""
    compiler.becomes("sleep 600")
    with ranks(1) as builder, ranks(4) as others:
        path = source(tmp_path, 5)
        builder.send(path)
        stuck = compiler.wait_for_build(1)
        others.send(path)
        compiler.becomes("true")
        builder.kill(0)
        answers = others.answers()
        with contextlib.suppress(ProcessLookupError):  # it may have gone with its builder
            os.kill(stuck, signal.SIGKILL)
    assert len(set(answers)) == 1, answers
    assert answers[0].startswith("ok 5 ")
    assert compiler.builds() == 2


def test_killing_one_who_waits_disturbs_nobody(tmp_path: Path, compiler: Compiler) -> None:
    os.mkfifo(tmp_path / "gate")
    compiler.becomes(f"read x < {tmp_path / 'gate'}")
    with ranks(3) as job:
        path = source(tmp_path, 6)
        job.send(path)
        with (tmp_path / "gate").open("w") as gate:  # returns once the build waits at the gate
            builder = compiler.wait_for_build(1)
            parents = [process.pid for process in job.processes]
            owner = int(Path(f"/proc/{builder}/stat").read_text().rpartition(")")[2].split()[1])
            job.kill(next(i for i, pid in enumerate(parents) if pid != owner))
            gate.write("go\n")
        answers = job.answers()
    assert len(answers) == 2
    assert len(set(answers)) == 1, answers
    assert compiler.builds() == 1


def test_a_rank_whose_source_does_not_compile_fails_alone(
    tmp_path: Path, compiler: Compiler
) -> None:
    bad = tmp_path / "bad.c"
    bad.write_text("no\n")
    with ranks(2) as job:
        job.send(bad)
        assert all(answer.startswith("failed CompileError") for answer in job.answers())
        job.send(source(tmp_path, 7))
        assert all(answer.startswith("ok 7 ") for answer in job.answers())


def test_a_time_comes_between_the_stamps_of_files_written_before_and_behind_it(
    tmp_path: Path,
) -> None:
    for number in range(50):
        earlier, later = tmp_path / f"{number}.a", tmp_path / f"{number}.b"
        earlier.write_text("")
        stamp(earlier)  # from here on its stamps are finer than the clock's ticks
        earlier.write_text("1")
        now = next_file_time_ns()
        later.write_text("")
        assert max(stamp(earlier)[2:]) < now <= min(stamp(later)[2:])
