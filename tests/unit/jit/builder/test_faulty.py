"""Compilers that lie or crash, and files that are none: what is built is whole, or there is an
error in words, and nothing waits for ever.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.unit.jit.support import ADD, forget, run

from bringup import jit
from bringup._locks import exclusive
from bringup.errors import BundleError, CompileError, MissingCompilerError
from bringup.jit.files.depfile import read_depfile
from bringup.jit.files.identity import read_bytes
from bringup.jit.files.layout import StoreUnwritableError, translate_write_errors

Compiler = Callable[..., None]


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """Puts a wrapper in the compiler's place that does something else at first, so many times."""

    def wrap(at_first: str, times: int = 1, on: str = " -o kernel.so ") -> None:
        wrapper, notes = tmp_path / "faulty-c++", tmp_path / "runs"
        wrapper.write_text(
            f"""#!/bin/bash
if [[ " $* " == *"{on}"* ]]; then
  echo >> {notes}
  if [ $(wc -l < {notes}) -le {times} ]; then
    {at_first}
  fi
fi
exec c++ "$@"
"""
        )
        wrapper.chmod(0o755)
        monkeypatch.setenv("BRINGUP_JIT_CXX", str(wrapper))

    return wrap


def added(binary: jit.Binary) -> float:
    x = np.zeros(1, np.float32)
    run(binary, x)
    return float(x[0])


CUT_OFF = {
    "empty binary": 'c++ "$@"; : > kernel.so; exit 0',
    "100 bytes": 'c++ "$@"; truncate -s 100 kernel.so; exit 0',
    "half a binary": 'c++ "$@"; truncate -s $(($(stat -c %s kernel.so) / 2)) kernel.so; exit 0',
    "a byte less": 'c++ "$@"; truncate -s -1 kernel.so; exit 0',
    "zeros": 'c++ "$@"; s=$(stat -c %s kernel.so); truncate -s 0 kernel.so; '
    "truncate -s $s kernel.so; exit 0",
    "no binary": "exit 0",
    "empty headers": 'c++ "$@"; : > kernel.d; exit 0',
    "cut-off headers": 'c++ "$@"; truncate -s 20 kernel.d; exit 0',
    "cut-off libraries": 'c++ "$@"; truncate -s 20 link.d; exit 0',
}


@pytest.mark.parametrize("fault", CUT_OFF)
def test_what_a_compiler_cut_off_once_is_built_once_more(
    fault: str, compiler: Compiler, root: Path, source: jit.Source
) -> None:
    compiler(CUT_OFF[fault])
    assert added(jit.compile(source, macros={"N": 3})) == 3


@pytest.mark.parametrize("fault", ["100 bytes", "empty headers"])
def test_what_it_cuts_off_always_is_an_error_and_no_entry(
    fault: str, compiler: Compiler, root: Path, source: jit.Source
) -> None:
    compiler(CUT_OFF[fault], times=2)
    with pytest.raises(CompileError, match=r"without an error, twice, and did not write all of"):
        jit.compile(source)
    assert jit.cache().entries() == []
    assert added(jit.compile(source)) == 1  # and nothing is remembered against it


def test_a_compiler_that_crashes_once_is_asked_once_more(
    compiler: Compiler, root: Path, source: jit.Source
) -> None:
    compiler("kill -SEGV $$", on=" --version ")
    assert added(jit.compile(source)) == 1


def test_a_compiler_that_always_crashes_says_so(
    compiler: Compiler, root: Path, source: jit.Source
) -> None:
    compiler("kill -SEGV $$", times=99, on=" --version ")
    with pytest.raises(MissingCompilerError, match=r"does not work: .* died with .*SIGSEGV"):
        jit.compile(source)


def test_no_space_for_temporary_files_is_not_a_missing_compiler(
    compiler: Compiler, root: Path, source: jit.Source, tmp_path: Path
) -> None:
    full = "echo 'Cannot create temporary file in /tmp/: No space left on device' >&2; exit 1"
    compiler(full, times=99, on=" -shared ")
    with pytest.raises(MissingCompilerError, match=r"Free space where compilers keep temporary"):
        jit.compile(source)


def test_an_entry_that_is_a_pipe_or_a_device_is_built_again(root: Path, source: jit.Source) -> None:
    for put in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        binary = jit.compile(source)
        binary.path.unlink()
        put(binary.path)
        forget()
        assert added(jit.compile(source)) == 1


@pytest.mark.parametrize("name", ["meta.json", "build.log"])
def test_any_file_of_an_entry_may_be_a_pipe(name: str, root: Path, source: jit.Source) -> None:
    binary = jit.compile(source)
    (binary.folder / name).unlink()
    os.mkfifo(binary.folder / name)
    forget()
    assert added(jit.compile(source)) == 1
    jit.cache().entries()
    if name == "build.log":
        with pytest.raises(LookupError, match="nothing to export"):
            jit.cache().export_bundle(root.parent / "bundle.zip")


def test_a_header_that_becomes_a_pipe_is_named(root: Path, tmp_path: Path) -> None:
    (tmp_path / "outer.h").write_text('#include "inner.h"\n')
    inner = tmp_path / "inner.h"
    inner.write_text("#define N 4\n")
    source = tmp_path / "piped.cpp"
    source.write_text(f'#include "outer.h"\n{ADD}')
    assert added(jit.compile(jit.Source(source))) == 4
    inner.unlink()
    os.mkfifo(inner)
    forget()
    with pytest.raises(CompileError, match=r"inner\.h, which it includes, is a pipe or a device"):
        jit.compile(jit.Source(source))


def test_reading_a_device_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="no regular file"):
            read_bytes(str(path))


def test_a_folder_that_is_read_as_a_file_is_an_error_that_leaves_nothing_open(
    tmp_path: Path,
) -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        read_bytes(str(tmp_path))
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_a_bundle_that_is_no_file_says_so(root: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(BundleError, match=rf"{path} is no file; expected one that `bringup"):
            jit.cache().import_bundle(path)
    with pytest.raises(FileNotFoundError):
        jit.cache().import_bundle(tmp_path / "nothing")


def test_renaming_across_devices_is_a_store_that_cannot_be_written(
    root: Path, source: jit.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, target: Path) -> Path:
        if str(root) in str(path):
            raise OSError(18, "Invalid cross-device link", str(path))
        return real(path, target)

    real = Path.replace
    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(Path, "rename", refuse)
    assert added(jit.compile(source)) == 1  # in the private cache


def test_no_folder_for_a_private_cache_is_said_in_words(
    root: Path, source: jit.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device", "/tmp")

    jit.toolchain()  # what is asked of a compiler once is asked in such a folder, too
    monkeypatch.setattr(tempfile, "mkdtemp", full)
    monkeypatch.setattr(jit.Cache, "stage", lambda _: _refuse())
    with pytest.raises(CompileError, match=r"there is no folder to build it in: .*No space left"):
        jit.compile(source)


def _refuse() -> None:
    raise StoreUnwritableError("the disk is gone")


NAMES = ("a\\b.h", "c d.h", "e\\ f.h", "g#h.h", "i$j.h", "k:l.h", "n\\\\ o.h", "p\\#q.h")


@pytest.mark.parametrize("name", NAMES)
def test_a_header_of_any_name_is_followed(name: str, root: Path, tmp_path: Path) -> None:
    header = tmp_path / name
    source = tmp_path / "named.cpp"
    source.write_text(f'#include "{name}"\n{ADD}')
    for n in (2, 3):
        header.write_text(f"#define N {n}\n")
        assert added(jit.compile(jit.Source(source))) == n


def test_a_name_that_a_compiler_does_not_write_as_it_is_is_refused_in_words(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRINGUP_JIT_CXX", "clang++")
    if problem := jit.toolchain().problem:
        pytest.skip(problem)
    (tmp_path / "a\\b.h").write_text("#define N 2\n")
    (tmp_path / "named.cpp").write_text(f'#include "a\\b.h"\n{ADD}')
    with pytest.raises(CompileError, match=r"a/b\.h, and that cannot be read .*; rename it"):
        jit.compile(jit.Source(tmp_path / "named.cpp"))


def test_a_library_in_a_folder_with_a_blank_is_followed(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    text = ADD.replace("#ifndef", 'extern "C" int part(void);\n#define N part()\n#ifndef')
    for n in (2, 3):
        (folder / "part.c").write_text(f"int part(void) {{ return {n}; }}\n")
        subprocess.run(["gcc", "-fPIC", "-c", "part.c"], cwd=folder, check=True)
        subprocess.run(["ar", "rc", "libpart.a", "part.o"], cwd=folder, check=True)
        binary = jit.compile(jit.Source(text=text, name="a.cpp"), flags=[f"-L{folder}", "-lpart"])
        assert added(binary) == n
        forget()


def test_depfiles_escape_blanks_alone(tmp_path: Path) -> None:
    path = tmp_path / "k.d"
    path.write_text("kernel: /a\\b.h /c\\\\\\ d.h \\\n  /e\\#f$$g.h /h\\\\ /i:j.h\n/x:\n")
    assert read_depfile(path) == ["/a\\b.h", "/c\\ d.h", "/e#f$g.h", "/h\\", "/i:j.h"]


def test_a_stopped_holder_of_a_lock_is_not_waited_for(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    code = (
        "import sys; from pathlib import Path; from bringup._locks import exclusive\n"
        "with exclusive(Path(sys.argv[1]), 1, print): print('held', flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(lock)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        start = time.monotonic()
        with exclusive(lock, 600, lambda *_: None) as is_ours:
            assert not is_ours
        assert time.monotonic() - start < 60
        holder.kill()


def test_every_write_error_of_a_store_is_translated() -> None:
    for number in (18, 13, 28, 30, 95):
        with pytest.raises(StoreUnwritableError), translate_write_errors():
            raise OSError(number, os.strerror(number))
