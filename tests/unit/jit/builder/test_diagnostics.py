"""What a failed build says: operator, parameters, command, first diagnostic, hint, log."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.jit.support import ADD

from bringup import jit
from bringup.errors import CompileError
from bringup.jit.builder.diagnose import compiling_for, first_diagnostic

REPOSITORY = Path(__file__).parents[4]
SOURCE = jit.Source(text=ADD, name="add.cpp")


@pytest.fixture
def compiler_that_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes builds fail with a text, or by other means of the shell."""

    def say(text: str, then: str = "exit 1") -> None:
        (tmp_path / "text").write_text(text)
        wrapper = tmp_path / "failing-c++"
        wrapper.write_text(
            f'#!/bin/sh\ncase " $* " in *" -o "*) cat {tmp_path}/text >&2; {then};; esac\n'
            'exec c++ "$@"\n'
        )
        wrapper.chmod(0o755)
        monkeypatch.setenv("BRINGUP_JIT_CXX", str(wrapper))

    return say


def failure_of(source: jit.Source, **arguments: object) -> CompileError:
    with pytest.raises(CompileError) as caught:
        jit.compile(source, **arguments)  # type: ignore[arg-type]
    return caught.value


def test_an_error_names_operator_parameters_command_and_log() -> None:
    source = jit.Source(text="#include <stdint.h>\nint x = Y;", name="bad.cpp")
    with compiling_for("demo::bad"):
        error = failure_of(source, macros={"T": "float", "N": 2}, flags=["-O1"])
    lines = str(error).splitlines()
    assert lines[0] == "demo::bad: bad.cpp did not compile for target 'cpu' (exit status 1):"
    assert lines[1].startswith("bad.cpp:2:9: error: 'Y' was not declared in this scope")
    assert "int x = Y;" in lines[2]
    assert "parameters: N=2, T=float" in lines
    assert any(line.startswith("command: ") and "-O1" in line for line in lines)
    log = Path(lines[-1].removeprefix("full log: "))
    assert error.log in log.read_text()
    assert (error.status, error.diagnostic.splitlines()[0]) == (1, lines[1])


def test_an_operator_is_named_where_it_is_called() -> None:
    torch = pytest.importorskip("torch")
    from bringup import ops

    bad = ops.kernel_op(
        "jitdiag::broken(Tensor x) -> Tensor",
        source=jit.Source(text="int32_t broken;", name="broken.cpp"),
        outputs=ops.empty_like("x"),
    )
    with pytest.raises(CompileError, match=r"^jitdiag::broken: broken\.cpp did not compile"):
        bad(torch.ones(2))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('#include "none.h"\n', r"hint: none\.h is in no searched folder: .*flags=\['-I/folder'\]"),
        ("#include <torch/extension.h>\n", r"hint: a kernel needs no torch headers: take bringup/"),
        (
            'extern "C" int nowhere(); extern "C" int run() { return nowhere(); }',
            r"hint: nothing defines 'nowhere': link the library .*'-lname'",
        ),
        ("int go() { return 0; }", r"hint: the source has to define the function 'run', declared"),
    ],
)
def test_a_mistake_in_the_source_has_a_hint(text: str, hint: str) -> None:
    with pytest.raises(CompileError, match=hint):
        jit.compile(jit.Source(text=text))


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("-lnot-there", r"hint: no folder that is searched has libnot-there: .*'-L/folder'"),
        ("-fno-such-option", r"hint: .* does not know this option: .* BRINGUP_JIT_CXX"),
        ("-march=i-made-this-up", r"hint: .* does not know this option"),
    ],
)
def test_a_mistake_in_the_flags_has_a_hint(flag: str, hint: str) -> None:
    with pytest.raises(CompileError, match=hint):
        jit.compile(SOURCE, flags=[flag])


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        (
            "c++: fatal error: Killed signal terminated program cc1plus\n",
            "the compiler was killed, most likely by the kernel for want of memory",
        ),
        (
            "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes\n",
            "more memory than there is, or than BRINGUP_JIT_MEMORY allows",
        ),
        (
            "cc1plus: error while loading shared libraries: libm.so.6: failed to map segment from "
            "shared object\n",
            "more memory than there is, or than BRINGUP_JIT_MEMORY allows",
        ),
        (
            "cc1plus: /lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by x)\n",
            r"parts of the compiler do not fit each other .*BRINGUP_JIT_CXX",
        ),
        (
            "host_config.h:129:2: error: #error -- unsupported GNU version! gcc 14 and later\n",
            "parts of the compiler do not fit each other",
        ),
    ],
)
def test_a_failure_of_the_machine_has_a_hint(
    compiler_that_says: Callable[[str], None], said: str, hint: str
) -> None:
    compiler_that_says(said)
    with pytest.raises(CompileError, match=rf"hint: .*{hint}"):
        jit.compile(SOURCE)


def test_a_part_of_the_compiler_that_dies_under_a_memory_limit_has_a_hint(
    compiler_that_says: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler_that_says(
        "c++: internal compiler error: Segmentation fault signal terminated program cc1plus\n"
    )
    monkeypatch.setenv("BRINGUP_JIT_MEMORY", "1G")
    with pytest.raises(CompileError, match=r"hint: .*BRINGUP_JIT_MEMORY allows"):
        jit.compile(SOURCE)


def test_a_compiler_killed_from_outside_has_a_hint(
    compiler_that_says: Callable[[str, str], None],
) -> None:
    compiler_that_says("", "kill -9 $$")
    with pytest.raises(CompileError, match=r"exit status -9.*\n.*\nhint: the compiler was killed"):
        jit.compile(SOURCE)


def test_a_full_disk_is_said_with_the_folders_to_free(
    compiler_that_says: Callable[[str], None],
) -> None:
    """It is tried in a private folder first."""
    compiler_that_says("/usr/bin/ld: final link failed: No space left on device\n")
    with pytest.raises(CompileError, match=r"free space where it is built .*BRINGUP_CACHE_DIR and"):
        jit.compile(SOURCE)


def test_a_compiler_that_cannot_be_started_any_more_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a file system that was mounted noexec meanwhile."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/usr/bin/c++")

    monkeypatch.setattr("bringup.jit.target.target.run", refuse)
    with pytest.raises(CompileError, match=r"cannot be started: .*Permission denied.*noexec"):
        jit.compile(SOURCE, macros={"N": 77})


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", "the compiler said nothing"),
        ("all is well", "all is well"),
        ("warning: x\nk.c:2: error: no", "k.c:2: error: no\n    2 | two"),
        ("k.c(1): error: no", "k.c(1): error: no\n    1 | one"),
        ("k.c:9: error: no", "k.c:9: error: no"),
        ("none.c:1: error: no", "none.c:1: error: no"),
        ("k.c:1:1: error: no\n    1 | one\n      | ^\nk.c:2: error", None),
    ],
)
def test_the_first_diagnostic_has_its_source_line(
    tmp_path: Path, log: str, expected: str | None
) -> None:
    """Also of a compiler that does not print it."""
    (tmp_path / "k.c").write_text("one\ntwo\n")
    wanted = "k.c:1:1: error: no\n    1 | one\n      | ^" if expected is None else expected
    assert first_diagnostic(log, tmp_path) == wanted


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_another_system_is_refused_with_one_sentence(system: str) -> None:
    script = f"import sys; sys.platform = {system!r}; import bringup.jit"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("bringup.errors.NativeLibraryError: bringup compiles and loads kernels")
    assert f"this is {system} on " in last
