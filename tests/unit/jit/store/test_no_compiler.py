"""Kernels where there is no compiler: found by source, macros and flags, refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.jit.support import ADD, forget, new_process, output_of, run

from bringup import jit
from bringup.errors import MissingCompilerError


def remove_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    forget()


def test_a_warm_cache_serves_without_a_compiler(
    root: Path, source: jit.Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No toolchain is needed for what was built before."""
    built = jit.compile(source, macros={"N": 3})
    plain = jit.compile(source)
    remove_compiler(tmp_path, monkeypatch)
    found = jit.compile(source, macros={"N": 3})
    assert found == built
    assert jit.compile(source, macros={"N": 3}) is found
    x = np.zeros(2, np.float32)
    run(found, x)
    assert x.tolist() == [3, 3]
    assert output_of(new_process(source)) == str(plain.path)


def test_a_text_is_found_without_a_compiler(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = jit.compile(jit.Source(text=ADD))
    remove_compiler(tmp_path, monkeypatch)
    assert jit.compile(jit.Source(text=ADD)) == built


def test_frozen_serves_what_is_there_without_a_compiler(
    root: Path, source: jit.Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = jit.compile(source)
    remove_compiler(tmp_path, monkeypatch)
    with jit.frozen():
        assert jit.compile(source) == built


def test_something_else_still_needs_a_compiler(
    root: Path, source: jit.Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jit.compile(source)
    remove_compiler(tmp_path, monkeypatch)
    with pytest.raises(
        MissingCompilerError, match=r"(?s)add\.cpp: no compiler for target.*bringup cache import"
    ):
        jit.compile(source, macros={"N": 2})


def test_a_changed_source_or_header_is_not_served(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, path = tmp_path / "value.h", tmp_path / "k.cpp"
    header.write_text("#define VALUE 1\n")
    path.write_text('#include "value.h"\nextern "C" int run() { return VALUE; }\n')
    built = jit.compile(jit.Source(path))
    remove_compiler(tmp_path, monkeypatch)
    assert jit.compile(jit.Source(path)) == built
    header.write_text("#define VALUE 2\n")
    with pytest.raises(MissingCompilerError, match="it was built from other headers"):
        jit.compile(jit.Source(path))
    header.write_text("#define VALUE 1\n")
    assert jit.compile(jit.Source(path)) == built
    path.write_text('extern "C" int run() { return 7; }\n')
    with pytest.raises(MissingCompilerError):
        jit.compile(jit.Source(path))


def test_a_processor_that_lacks_an_instruction_set_is_refused_by_name(
    root: Path, source: jit.Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bringup.jit.target import machine

    jit.compile(source)
    needed = jit.cache().entries()[0].meta()["origin"]["requires"]
    assert needed
    monkeypatch.setattr(machine, "features", lambda: frozenset(needed[1:]))
    remove_compiler(tmp_path, monkeypatch)
    with pytest.raises(MissingCompilerError, match=f"it needs {needed[0]}, which this machine's"):
        jit.compile(source)


def test_another_machine_is_refused_by_name(
    root: Path, source: jit.Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bringup.jit.target import machine

    jit.compile(source)
    here = machine.this_machine()
    monkeypatch.setattr(machine, "this_machine", lambda: "riscv64")
    remove_compiler(tmp_path, monkeypatch)
    with pytest.raises(MissingCompilerError, match=f"built for {here}, this machine is riscv64"):
        jit.compile(source)


def test_a_chosen_compiler_that_is_missing_is_an_error_all_the_same(
    root: Path, source: jit.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    jit.compile(source)
    monkeypatch.setenv("BRINGUP_JIT_CXX", "no-such-compiler")
    with pytest.raises(MissingCompilerError, match="BRINGUP_JIT_CXX is 'no-such-compiler'"):
        jit.compile(source)


def test_a_damaged_entry_is_not_loaded_without_a_compiler(
    root: Path, source: jit.Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = jit.compile(source)
    built.path.write_bytes(b"")
    remove_compiler(tmp_path, monkeypatch)
    with pytest.raises(MissingCompilerError):
        jit.compile(source)


def test_a_program_that_is_no_compiler_is_said(
    root: Path, source: jit.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRINGUP_JIT_CXX", "/bin/true")
    with pytest.raises(
        MissingCompilerError, match=r"/bin/true linked nothing, .* Set BRINGUP_JIT_CXX to a working"
    ):
        jit.compile(source)
