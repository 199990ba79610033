"""What people see while kernels are built."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.jit.support import ADD

from bringup import jit
from bringup.errors import CompileError
from bringup.jit import Source, Spec
from bringup.jit.builder import build
from bringup.jit.lookup import compilation, events, progress
from bringup.jit.lookup.progress import Timing

REPOSITORY = Path(__file__).parents[4]
ADDER = Source(text=ADD, name="add.cpp")


class Stderr(io.StringIO):
    """A stderr that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._written = threading.Condition()

    def write(self, text: str) -> int:
        with self._written:
            count = super().write(text)
            self._written.notify_all()
        return count

    def wait_for(self, pattern: str) -> None:
        with self._written:
            found = self._written.wait_for(lambda: re.search(pattern, self.getvalue()), 60)
            assert found, self.getvalue()


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Stderr:
    stderr = Stderr()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stderr))
    return stderr


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("BRINGUP_JIT_PROGRESS", "1")
    progress.reset()
    yield
    progress.reset()


@pytest.fixture
def gate(tmp_path: Path, before_builds: Callable[[str], None]) -> Path:
    """A compiler that builds only while this pipe is written to."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    before_builds(f"read x < {gate}")
    return gate


def request_for(source: Source) -> build.Request:
    return compilation.request_for(source, {}, "cpu", (), None, compilation.cache())


def test_a_quick_compile_and_a_hit_say_nothing(
    stderr: Stderr, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "timing", Timing(patience=60))
    for _ in range(2):
        jit.compile(ADDER)
    jit.prebuild([ADDER])
    assert stderr.getvalue() == ""


def test_a_compile_that_takes_long_is_shown_with_a_heartbeat(
    stderr: Stderr, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "timing", Timing(patience=0.05, heartbeat=0.05))
    compiling = threading.Thread(target=jit.compile, args=(ADDER,))
    compiling.start()
    with gate.open("w") as opened:
        stderr.wait_for(r"(bringup: compiling add\.cpp, \d+ s so far\n){2}")
        opened.write("go\n")
    compiling.join(timeout=240)
    stderr.wait_for(r"bringup: compiled add\.cpp in ")


def test_compiles_that_take_long_together_are_shown(
    stderr: Stderr, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "timing", Timing(patience=0.001, pause=60))
    jit.compile(ADDER)
    jit.compile(ADDER, macros={"N": 2})
    assert len(re.findall("bringup: compiled add.cpp in", stderr.getvalue())) >= 1
    # The second took no two seconds: what it says is when it is done.
    assert stderr.getvalue().count("so far") <= 1


def test_a_compile_that_fails_after_long_says_so(
    stderr: Stderr, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "timing", Timing(patience=0))
    with pytest.raises(CompileError):
        jit.compile(Source(text="no", name="bad.cpp"))
    assert "bringup: bad.cpp did not compile\n" in stderr.getvalue()


def test_a_prebuild_of_several_says_what_became_of_each(stderr: Stderr) -> None:
    bad = Spec(Source(text="no", name="bad.cpp"))
    jit.compile(ADDER)
    jit.prebuild([ADDER, Spec(ADDER, {"N": 2}), bad])
    lines = stderr.getvalue().splitlines()
    assert lines[0] == "bringup: building kernels: 0 of 2 done, 0 s so far"
    counts = [re.match(r"bringup: (\d)/2 ", line) for line in lines[1:3]]
    assert [count[1] for count in counts if count] == ["1", "2"]
    assert any("built: add.cpp N=2 for cpu in " in line for line in lines)
    assert any("failed: bad.cpp for cpu: " in line for line in lines)
    assert not any("add.cpp for cpu" in line for line in lines)  # a hit is silent


def test_a_prebuild_of_one_says_nothing_unless_it_takes_long(
    stderr: Stderr, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "timing", Timing(patience=60))
    jit.prebuild([ADDER])
    assert stderr.getvalue() == ""
    monkeypatch.setattr(progress, "timing", Timing(patience=0))
    jit.prebuild([Spec(ADDER, {"N": 2})])
    assert "1/1 built: add.cpp N=2 for cpu" in stderr.getvalue()


def test_progress_can_be_turned_off(stderr: Stderr, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "timing", Timing(patience=0))
    monkeypatch.setenv("BRINGUP_JIT_PROGRESS", "0")
    jit.prebuild([ADDER, Spec(ADDER, {"N": 2})])
    events.emit(events.Waiting(request_for(ADDER), "key", 5.0))
    assert stderr.getvalue() == ""


def test_waiting_for_another_process_says_for_whom_and_since_when(stderr: Stderr) -> None:
    request = request_for(ADDER)
    events.emit(events.Waiting(request, "key", 5.2, pid=4711, since=1_700_000_000.0))
    events.emit(events.Waiting(request, "key", 10.0))
    first, second = stderr.getvalue().splitlines()
    assert re.fullmatch(
        r"bringup: waiting 5 s for add\.cpp, which process 4711 is compiling since \d\d:\d\d:\d\d",
        first,
    )
    assert second == "bringup: waiting 10 s for add.cpp, which another process is compiling"


def test_a_short_wait_is_not_worth_a_line(stderr: Stderr) -> None:
    events.emit(events.Waiting(request_for(ADDER), "key", 0.1, pid=4711))
    assert stderr.getvalue() == ""


BUILD = """
import os, sys
from bringup import jit
print(os.getpid(), flush=True)
jit.compile(jit.Source(text=sys.argv[1], name="add.cpp"))
"""


def test_who_waits_for_another_process_is_told_its_number(gate: Path) -> None:
    """The heartbeat, between two processes."""

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", BUILD, ADD],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    builder = start()
    with gate.open("w") as opened:  # returns once the build waits at the gate
        waiter = start()
        assert waiter.stderr is not None
        line = waiter.stderr.readline()
        opened.write("go\n")
    assert re.match(r"bringup: waiting [2-9]\d* s for add\.cpp, which process ", line), line
    assert f"process {builder.communicate(timeout=240)[0].strip()} is compiling since" in line
    waiter.communicate(timeout=240)
    assert (builder.returncode, waiter.returncode) == (0, 0)


def test_a_program_without_stderr_still_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=None))
    assert len(jit.prebuild([ADDER, Spec(ADDER, {"N": 2})]).built) == 2


ON_A_TERMINAL = """
import sys, time
from bringup import jit
from bringup.jit.lookup import progress
progress.timing = progress.Timing(patience=0)
source = jit.Source(text=sys.argv[1], name="add.cpp")
jit.compile(source)
jit.prebuild([jit.Spec(source, {"N": n}) for n in (2, 3)])
"""


def test_a_terminal_gets_a_live_display_that_goes_away() -> None:
    """In a process of its own on a pseudo-terminal, as people see it."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, ADD],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "TERM": "xterm"},
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # how Linux says that nobody has the other end any more
            break
        if not chunk:
            break
        seen += chunk
    os.close(ours)
    assert process.wait(timeout=240) == 0
    text = seen.decode()
    assert "compiling add.cpp" in text
    assert "building kernels: " in text
    assert "2/2 built: add.cpp N=" in text
    assert text.count("\x1b[?25h") == text.count("\x1b[?25l") > 0  # the cursor is back
