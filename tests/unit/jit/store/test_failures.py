"""The negative cache: what failed is not compiled again until something changes that it could
depend on; what only lacked resources is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jit.support import REPOSITORY

from bringup import jit
from bringup.errors import CompileError, MissingKernelError
from bringup.jit.files.identity import next_file_time_ns
from bringup.jit.lookup import building

BROKEN = 'extern "C" int run() {\n  return missing_name;\n}\n'


def failure(source: jit.Source, **options: object) -> CompileError:
    with pytest.raises(CompileError) as caught:
        jit.compile(source, **options)  # type: ignore[arg-type]
    return caught.value


def facts(error: CompileError) -> tuple[object, ...]:
    return str(error), error.command, error.diagnostic, error.log, error.status


def compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, otherwise: str = "c++"
) -> Path:
    """A compiler that does `script` when it builds and else is `otherwise`; builds are noted."""
    notes, wrapper = tmp_path / "notes", tmp_path / "failing-c++"
    notes.write_text("")
    wrapper.write_text(
        f'#!/bin/sh\ncase " $* " in *" -o "*) echo build >> {notes}; {script};; esac\n'
        f'exec {otherwise} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("BRINGUP_JIT_CXX", str(wrapper))
    return notes


def test_a_source_that_failed_is_not_compiled_again_and_the_error_is_the_same(
    root: Path, counted: Callable[[], int]
) -> None:
    """Negative cache."""
    source = jit.Source(text=BROKEN, name="bad.cpp")
    first, again = failure(source), failure(source)
    assert counted() == 1
    assert facts(again) == facts(first)
    assert first.diagnostic.startswith("bad.cpp:2:10: error:")
    assert first.status == 1


def test_another_process_knows_the_failure(root: Path, counted: Callable[[], int]) -> None:
    source = jit.Source(text=BROKEN, name="bad.cpp")
    first = failure(source)
    script = (
        "import sys\nfrom bringup import jit, errors\n"
        "try:\n    jit.compile(jit.Source(text=sys.argv[1], name='bad.cpp'))\n"
        "except errors.CompileError as error:\n    print(error, end='')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, BROKEN],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == str(first)
    assert counted() == 1


def test_every_thread_that_waits_gets_the_failure(root: Path, counted: Callable[[], int]) -> None:
    errors: list[CompileError] = []
    source = jit.Source(text=BROKEN)
    threads = [threading.Thread(target=lambda: errors.append(failure(source))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({str(error) for error in errors}) == 1
    assert len(errors) == 4
    assert counted() == 1


def test_a_thread_that_waited_for_an_interrupted_build_builds_itself(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, interrupt = threading.Event(), threading.Event()
    build_somewhere = building.build_somewhere

    def interrupted_once(*arguments: Any) -> Any:
        monkeypatch.setattr(building, "build_somewhere", build_somewhere)
        started.set()
        interrupt.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "build_somewhere", interrupted_once)
    source = jit.Source(text='extern "C" int run() { return 7; }')
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(jit.compile, source)
        assert started.wait(60)
        second = pool.submit(jit.compile, source)
        interrupt.set()
        assert isinstance(first.exception(60), KeyboardInterrupt)
        assert second.result(60).path.is_file()


def test_another_key_is_compiled(root: Path, counted: Callable[[], int]) -> None:
    source = jit.Source(text=BROKEN)
    failure(source)
    failure(source, macros={"N": 2})
    assert jit.compile(source, macros={"missing_name": 3}).path.is_file()
    assert counted() == 3


def test_a_header_that_was_mended_is_seen_and_a_touched_one_is_not_a_change(
    root: Path, tmp_path: Path, counted: Callable[[], int]
) -> None:
    header, path = tmp_path / "value.h", tmp_path / "k.cpp"
    header.write_text("#define VALUE missing\n")
    path.write_text('#include "value.h"\nextern "C" int run() { return VALUE; }\n')
    old = header.stat().st_mtime - 100
    os.utime(header, (old, old))
    next_file_time_ns()  # what is as young as a build is not trusted
    failure(jit.Source(path))
    header.write_text("#define VALUE missing\n")
    failure(jit.Source(path))
    assert counted() == 1
    header.write_text("#define VALUE 1\n")
    assert jit.compile(jit.Source(path)).path.is_file()


@pytest.mark.parametrize("cxx", ["g++", "clang++"])
def test_a_header_that_was_missing_is_looked_for_and_not_compiled_for(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cxx: str
) -> None:
    notes = compiler(tmp_path, monkeypatch, f'exec {cxx} "$@"', cxx)
    folder = tmp_path / "include"
    folder.mkdir()
    path = tmp_path / "source" / "k.cpp"
    path.parent.mkdir()
    path.write_text('#include "value.h"\nextern "C" int run() { return VALUE; }\n')
    first = failure(jit.Source(path), flags=[f"-I{folder}"])
    runs = len(notes.read_text().split())
    (folder / "other.h").write_text("")
    assert facts(failure(jit.Source(path), flags=[f"-I{folder}"])) == facts(first)
    assert len(notes.read_text().split()) == runs
    (folder / "value.h").write_text("#define VALUE 1\n")
    assert jit.compile(jit.Source(path), flags=[f"-I{folder}"]).path.is_file()


@pytest.mark.parametrize(
    "script",
    [
        "kill -9 $$",
        "echo 'cc1plus: fatal error: No space left on device' >&2; exit 1",
        "echo 'k.cpp:1:1: error: out of memory allocating 8 bytes' >&2; exit 1",
        "echo 'c++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1",
        "echo 'k.cpp:3:1: internal compiler error: Segmentation fault' >&2; exit 1",
        "echo 'collect2: fatal error: cannot find ld' >&2; exit 1",
    ],
)
def test_a_compiler_that_lacked_something_is_asked_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """A failure for want of resources is never kept."""
    notes = compiler(tmp_path, monkeypatch, script)
    failure(jit.Source(text="int i;"))
    before = len(notes.read_text().split())
    failure(jit.Source(text="int i;"))
    assert len(notes.read_text().split()) == 2 * before


def test_a_compiler_that_took_too_long_is_asked_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = compiler(tmp_path, monkeypatch, "exec sleep 600")
    monkeypatch.setenv("BRINGUP_JIT_TIMEOUT", "1")
    failure(jit.Source(text="int i;"))
    failure(jit.Source(text="int i;"))
    assert len(notes.read_text().split()) == 2


def test_a_library_that_is_linked_may_change_so_its_failure_is_not_kept(
    root: Path, counted: Callable[[], int]
) -> None:
    source = jit.Source(text='extern "C" int nowhere(); extern "C" int run() { return nowhere(); }')
    failure(source, flags=["-lm"])
    once = counted()
    failure(source, flags=["-lm"])
    assert counted() == 2 * once
    failure(source)
    before = counted()
    failure(source)
    assert counted() == before


def test_another_environment_of_the_compiler_is_another_try(
    root: Path, counted: Callable[[], int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = jit.Source(text=BROKEN)
    failure(source)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    failure(source)
    assert counted() == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"environment": 1, "headers": []}'])
def test_a_damaged_record_is_only_another_compile(
    root: Path, counted: Callable[[], int], content: str
) -> None:
    source = jit.Source(text=BROKEN)
    first = failure(source)
    (record,) = (root / "v1" / ".failed").glob("*.json")
    record.write_text(content)
    assert failure(source).diagnostic == first.diagnostic
    assert counted() == 2


def test_frozen_says_that_it_is_missing(root: Path) -> None:
    source = jit.Source(text=BROKEN)
    failure(source)
    with jit.frozen(), pytest.raises(MissingKernelError):
        jit.compile(source)
