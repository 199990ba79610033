"""Targets: one interface for every compiler, what each builds, and what cannot be loaded here."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.unit.jit.support import ADD, needs_target, run

from bringup import jit
from bringup.errors import MissingCompilerError, TargetError
from bringup.jit._elf import machine_of

COMPILERS = ["g++", "clang++"]


def needs_program(name: str) -> None:
    if shutil.which(name) is None:
        package = {"clang++": "clang", "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu"}[name]
        pytest.skip(f"no {name}: apt-get install {package}")


@pytest.fixture(params=COMPILERS)
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name != "g++":
        needs_program(name)
    monkeypatch.setenv("BRINGUP_JIT_CXX", name)
    return name


@pytest.mark.parametrize("target", ["cpu", "sim"])
def test_each_compiler_of_the_host_builds_what_runs_here(compiler: str, target: str) -> None:
    """Row 7: and each of them has keys of its own."""
    binary = jit.compile(jit.Source(text=ADD, name="add.cpp"), macros={"N": 3}, target=target)
    x = np.zeros(5, np.float32)
    run(binary, x)
    assert x.tolist() == [3] * 5
    assert ("clang" in jit.toolchain(target).version) == (compiler == "clang++")


def test_compilers_and_targets_have_keys_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 7."""
    needs_program("clang++")
    source, keys = jit.Source(text=ADD, name="add.cpp"), set()
    for name in COMPILERS:
        monkeypatch.setenv("BRINGUP_JIT_CXX", name)
        keys |= {jit.compile(source, target=target).key for target in ("cpu", "sim")}
    assert len(keys) == 4


def test_a_compiler_that_is_a_library_is_known_by_that_library() -> None:
    """Row 7: clang++ is a small program over libclang and libLLVM."""
    needs_program("clang++")
    from bringup.jit._toolchain import libraries_of

    loaded = [Path(path).name for path in libraries_of(str(shutil.which("clang++")))]
    known = jit.GnuTarget("clang", ["clang++"], march="native", get="").toolchain(jit.cache())
    parts = [Path(path).name for path, _ in known.parts]
    assert set(loaded) <= set(parts)


@needs_target("aarch64")
def test_a_cross_target_compiles_and_stores_for_another_machine() -> None:
    """Row 19."""
    binary = jit.compile(jit.Source(text=ADD, name="add.cpp"), target="aarch64")
    assert machine_of(binary.path) == "aarch64"
    assert binary.target == "aarch64"
    assert jit.compile(jit.Source(text=ADD, name="add.cpp"), target="aarch64") == binary
    assert binary.key in {entry.key for entry in jit.cache().entries()}


@needs_target("aarch64")
@pytest.mark.skipif(os.uname().machine == "aarch64", reason="this machine can load it")
def test_loading_a_binary_of_another_machine_names_both_machines() -> None:
    """Row 19."""
    binary = jit.compile(jit.Source(text=ADD, name="add.cpp"), target="aarch64")
    with pytest.raises(
        TargetError,
        match=rf"built by target 'aarch64' for aarch64, and this machine is {os.uname().machine}: "
        r".*compile for target 'cpu'",
    ):
        _ = binary.kernel_id


@needs_target("aarch64")
def test_a_list_of_architectures_is_a_list_of_variants() -> None:
    """Row 19."""
    source = jit.Source(text=ADD, name="add.cpp")
    wanted = ["aarch64", "aarch64:armv8.2-a", "aarch64:armv8.2-a+sve"]
    binaries = [jit.compile(source, target=name) for name in wanted]
    assert [binary.target for binary in binaries] == wanted
    assert len({binary.key for binary in binaries}) == 3


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="names instruction sets of x86-64")
def test_a_variant_with_instructions_that_this_machine_lacks_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Row 7: it would end the process."""
    target = jit.GnuTarget("cpu", ["c++"], march="x86-64-v2", get="", runs_here=True)
    real = target._predefined
    monkeypatch.setattr(
        target,
        "_predefined",
        lambda compiler, *flags: (
            real(compiler) if "-march=native" in flags else real(compiler, *flags)
        ),
    )
    toolchain = target.toolchain(jit.Cache(Path("/nonexistent")))
    assert any("__SSE4_2__" in feature for feature in toolchain.lacking)
    binary = jit.compile(jit.Source(text=ADD, name="add.cpp"))
    with pytest.raises(TargetError, match=r"instructions that this machine .* lacks: .*__SSE4_2__"):
        target.check_loadable(binary.path, jit.Debug())


def test_a_missing_cross_compiler_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        MissingCompilerError,
        match=r"no compiler for target 'aarch64': none of aarch64-linux-gnu-g\+\+ is on PATH\. Get "
        r"one with: apt-get install g\+\+-aarch64-linux-gnu",
    ):
        jit.compile(jit.Source(text=ADD), target="aarch64")
    assert "g++-aarch64-linux-gnu" in jit.toolchain("aarch64").problem
