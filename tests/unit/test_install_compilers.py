"""The step that gets compilers: what it asks apt-get for, and the one line when it may not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "install_compilers.py"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A PATH of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def add(programs: Path, name: str, script: str = "exit 0") -> None:
    (programs / name).write_text(f"#!/bin/sh\n{script}\n")
    (programs / name).chmod(0o755)


def run(programs: Path, libraries: dict[str, str] | None = None) -> str:
    code = f"import install_compilers as tool; tool.LIBRARIES = {libraries or {}}; tool.main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=TOOL.parent,
        env={**os.environ, "PATH": str(programs)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr


def test_nothing_is_done_where_all_compilers_are(programs: Path) -> None:
    add(programs, "clang++", "echo /usr/lib/libclang_rt.asan.so")
    add(programs, "aarch64-linux-gnu-g++")
    add(programs, "chromium")
    add(programs, "qemu-aarch64-static")
    add(programs, "apt-get", "exit 1")
    assert run(programs) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs packages")
def test_root_installs_what_is_missing(programs: Path, tmp_path: Path) -> None:
    add(programs, "clang++", "echo /usr/lib/libclang_rt.asan.so")
    add(programs, "chromium")
    add(programs, "apt-get", f'echo "$@" >> {tmp_path}/asked')
    assert run(programs) == ""
    update, install = (tmp_path / "asked").read_text().splitlines()
    assert "update" in update
    assert install.endswith("--no-install-recommends g++-aarch64-linux-gnu qemu-user-static")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs packages")
def test_the_sanitizers_of_clang_are_a_package_of_their_own(programs: Path, tmp_path: Path) -> None:
    script = 'case "$1" in -dumpversion) echo 14.0.6;; *) echo x;; esac'
    add(programs, "clang++", script)
    add(programs, "aarch64-linux-gnu-g++")
    add(programs, "chromium")
    add(programs, "qemu-aarch64-static")
    add(programs, "apt-get", f'echo "$@" >> {tmp_path}/asked')
    run(programs)
    assert "libclang-rt-14-dev" in (tmp_path / "asked").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs packages")
def test_a_library_is_missing_where_its_file_is(programs: Path, tmp_path: Path) -> None:
    for program in ("aarch64-linux-gnu-g++", "chromium", "qemu-aarch64-static"):
        add(programs, program)
    add(programs, "clang++", "echo /usr/lib/libclang_rt.asan.so")
    add(programs, "apt-get", f'echo "$@" >> {tmp_path}/asked')
    run(programs, {f"{TOOL.parent}/*.py": "there", f"{tmp_path}/*.icd": "pocl-opencl-icd"})
    assert (tmp_path / "asked").read_text().endswith("--no-install-recommends pocl-opencl-icd\n")


def test_what_cannot_be_installed_is_one_loud_line(programs: Path) -> None:
    add(programs, "apt-get", "echo E: no network >&2; exit 100")
    (line,) = run(programs).splitlines()
    packages = "clang g++-aarch64-linux-gnu chromium qemu-user-static"
    assert line.startswith(f"*** NOT ALL TARGETS ARE TESTED: {packages} could not")
    assert ("E: no network" in line) == (os.geteuid() == 0)
    assert line.endswith(f"apt-get install {packages} ***")
