"""What a compiler leaves behind: nothing that runs on, no log without end, no wrong advice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bringup import jit
from bringup.errors import CompileError
from bringup.jit.target.nvrtc import defines_entry

COMPILE = """
import sys
from bringup import jit
jit.compile(jit.Source(text="int run(void) { return 0; }", name="k.c"))
"""


def test_a_killed_process_takes_its_compiler_along(
    root: Path, tmp_path: Path, before_builds: Callable[[str], None]
) -> None:
    runs, never = tmp_path / "runs", tmp_path / "never"
    os.mkfifo(runs)
    os.mkfifo(never)
    # The compiler holds one end of a pipe, and so does the child that it waits for.
    before_builds(f"exec 9> {runs}; echo started >&9; cat {never}")
    process = subprocess.Popen([sys.executable, "-c", COMPILE], stderr=subprocess.DEVNULL)
    with runs.open() as pipe:
        assert pipe.readline() == "started\n"
        process.kill()
        process.wait()
        assert pipe.read() == ""  # the end of the pipe: whoever held it is gone


def test_a_compiler_has_a_limit_on_its_time_that_needs_nobody(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before_builds: Callable[[str], None],
    root: Path,
) -> None:
    monkeypatch.setenv("BRINGUP_JIT_TIMEOUT", "77")
    # Read once: the limit is there before the compiler begins.
    before_builds(f"ulimit -t > {tmp_path}/limit")
    jit.compile(jit.Source(text="int run(void) { return 0; }", name="k.c"))
    assert (tmp_path / "limit").read_text() == "82\n"


def test_a_log_without_end_is_kept_in_part(
    root: Path, before_builds: Callable[[str], None]
) -> None:
    noise = (
        "echo k.c:1:1: error: the first; yes many words | head -c 3000000; echo the last; exit 1"
    )
    before_builds(noise)
    with pytest.raises(CompileError, match="the first") as failed:
        jit.compile(jit.Source(text="int run(void) { return 0; }", name="k.c"))
    assert "bytes left out" in failed.value.log
    assert failed.value.log.endswith("the last\n")
    kept = sum(path.stat().st_size for path in (root / "v1" / ".failed").iterdir())
    assert kept < 600_000


@pytest.mark.parametrize("name", [".staging", ".locks", ".manifests", ".calls", ".failed"])
def test_a_file_in_the_place_of_a_folder_is_no_end(
    root: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = jit.Source(text="int run(void) { return 0; }", name="k.c")
    (root / "v1").mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    (root / "v1").chmod(0o700)
    (root / "v1" / name).write_text("")
    assert jit.compile(source).path.is_file()


def test_a_limit_on_files_is_named_and_no_other_compiler_is_advised(
    root: Path, tmp_path: Path
) -> None:
    command = f"ulimit -f 1; exec {sys.executable} -c '{COMPILE}'"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "raise `ulimit -f` and try again" in done.stderr
    assert "apt-get" not in done.stderr


@pytest.mark.parametrize(
    ("names", "found"),
    [([".text.saxpy"], False), ([".text.saxp"], True), ([".text.a", ".x"], False)],
)
def test_the_entry_of_device_code_is_found_by_its_whole_name(names: list[str], found: bool) -> None:
    table = b"\0".join(name.encode() for name in ["", ".strtab", *names, ""])
    assert defines_entry(b"\x7fELF" + table, "saxp") == found
