"""`jit.compile`: from a source to a kernel that runs, and what is said when that fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.jit.support import ADD, run

from bringup import jit
from bringup.errors import CompileError, MissingCompilerError, MissingKernelError


def test_a_text_compiles_and_runs() -> None:
    binary = jit.compile(jit.Source(text=ADD, name="add.cpp"))
    x = np.zeros(3, np.float32)
    run(binary, x)
    assert x.tolist() == [1, 1, 1]


def test_a_file_compiles_and_runs_with_macros(tmp_path: Path) -> None:
    path = tmp_path / "add.cpp"
    path.write_text(ADD)
    x = np.zeros(2, np.float32)
    run(jit.compile(jit.Source(path), macros={"N": -3}), x)
    run(jit.compile(jit.Source(path), macros={"N": 0.5}), x)
    assert x.tolist() == [-2.5, -2.5]


def test_a_c_file_is_compiled_as_c() -> None:
    text = "#ifdef __cplusplus\n#error not C\n#endif\nint run(void) { int new = 0; return new; }\n"
    assert jit.compile(jit.Source(text=text, name="plain.c")).path.is_file()


def test_a_bad_source_raises_at_the_call_with_command_and_first_diagnostic() -> None:
    source = jit.Source(text='extern "C" int run() {\n  return missing_name;\n}\n', name="bad.cpp")
    with pytest.raises(CompileError) as caught:
        jit.compile(source)
    error = caught.value
    assert error.diagnostic.splitlines()[0].startswith("bad.cpp:2:10: error:")
    assert "return missing_name;" in error.diagnostic
    assert "bad.cpp" in error.command
    assert "bad.cpp did not compile for target 'cpu'" in str(error)
    log = Path(str(error).rpartition("full log: ")[2])
    assert "missing_name" in log.read_text()


def test_an_undefined_function_is_a_compile_error() -> None:
    text = 'extern "C" int nowhere(); extern "C" int run() { return nowhere(); }'
    with pytest.raises(CompileError, match="undefined reference to `nowhere'"):
        jit.compile(jit.Source(text=text))


def test_a_missing_entry_is_a_compile_error_that_says_how_to_define_it() -> None:
    with pytest.raises(CompileError, match=r"define the function 'go', declared extern \"C\""):
        jit.compile(jit.Source(text="int go() { return 0; }", entry="go"))


def test_a_missing_compiler_says_what_was_looked_for(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        MissingCompilerError, match=r"c\+\+, g\+\+, clang\+\+.*apt-get install g\+\+"
    ):
        jit.compile(jit.Source(text=ADD))
    assert "BRINGUP_JIT_CXX is not set" in jit.toolchain("cpu").problem


def test_a_chosen_compiler_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_JIT_CXX", "no-such-compiler")
    with pytest.raises(MissingCompilerError, match="BRINGUP_JIT_CXX is 'no-such-compiler'"):
        jit.compile(jit.Source(text=ADD))


def test_a_compiler_that_fails_is_a_missing_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken++"
    broken.write_text("#!/bin/sh\necho license expired >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("BRINGUP_JIT_CXX", str(broken))
    with pytest.raises(MissingCompilerError, match=r"does not work: .*license expired"):
        jit.compile(jit.Source(text=ADD))


def test_frozen_refuses_a_miss_and_serves_a_hit(root: Path) -> None:
    source = jit.Source(text=ADD, name="add.cpp")
    known = jit.compile(source)
    with jit.frozen():
        assert jit.compile(source) == known
        with pytest.raises(MissingKernelError, match=r"no kernel for: add\.cpp.*macros N=5"):
            jit.compile(source, macros={"N": 5})
    assert jit.compile(source, macros={"N": 5}).path.is_file()


def test_an_unknown_target_lists_the_targets() -> None:
    with pytest.raises(ValueError, match="target 'gpu': expected one of 'cpu', 'sim', 'aarch64'"):
        jit.compile(jit.Source(text=ADD), target="gpu")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no such kernel source.*gone\.cpp"):
        jit.compile(jit.Source(tmp_path / "gone.cpp"))


def test_something_else_than_a_source_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected a jit\.Source, got str"):
        jit.compile("add.cpp")  # type: ignore[arg-type]


def test_include_flags_lead_to_the_header() -> None:
    folders = [flag.removeprefix("-I") for flag in jit.include_flags()]
    assert any((Path(folder) / "bringup/kernel.h").is_file() for folder in folders)


@pytest.mark.parametrize("source", ["add.cpp", None, Path("add.cpp")])
def test_what_is_no_source_is_a_type_error_that_shows_it(source: object) -> None:
    with pytest.raises(TypeError, match=r"jit\.compile: expected a jit\.Source, got \w+ \("):
        jit.compile(source)  # type: ignore[arg-type]
