"""Targets: one interface for every compiler, what each builds, and what cannot be loaded here."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from tests.unit.jit.support import ADD, run

from bringup import jit
from bringup.errors import CompileError, MissingCompilerError, TargetError
from bringup.jit.files.elf import machine_of
from bringup.jit.target import target as target_module

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
    """Each of them has keys of its own, too."""
    binary = jit.compile(jit.Source(text=ADD, name="add.cpp"), macros={"N": 3}, target=target)
    x = np.zeros(5, np.float32)
    run(binary, x)
    assert x.tolist() == [3] * 5
    assert ("clang" in jit.toolchain(target).version) == (compiler == "clang++")


def test_compilers_and_targets_have_keys_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_program("clang++")
    source, keys = jit.Source(text=ADD, name="add.cpp"), set()
    for name in COMPILERS:
        monkeypatch.setenv("BRINGUP_JIT_CXX", name)
        keys |= {jit.compile(source, target=target).key for target in ("cpu", "sim")}
    assert len(keys) == 4


def test_a_compiler_that_is_a_library_is_known_by_that_library() -> None:
    """clang++ is a small program over libclang and libLLVM."""
    needs_program("clang++")
    from bringup.jit.target.toolchain import libraries_of

    loaded = [Path(path).name for path in libraries_of(str(shutil.which("clang++")))]
    known = jit.GnuTarget("clang", ["clang++"], march="native", get="").toolchain(jit.cache())
    parts = [Path(path).name for path, _ in known.parts]
    assert set(loaded) <= set(parts)


@pytest.mark.usefixtures("aarch64")
def test_a_cross_target_compiles_and_stores_for_another_machine() -> None:
    binary = jit.compile(jit.Source(text=ADD, name="add.cpp"), target="aarch64")
    assert machine_of(binary.path) == "aarch64"
    assert binary.target == "aarch64"
    assert jit.compile(jit.Source(text=ADD, name="add.cpp"), target="aarch64") == binary
    assert binary.key in {entry.key for entry in jit.cache().entries()}


@pytest.mark.usefixtures("aarch64")
@pytest.mark.skipif(os.uname().machine == "aarch64", reason="this machine can load it")
def test_loading_a_binary_of_another_machine_names_both_machines() -> None:
    binary = jit.compile(jit.Source(text=ADD, name="add.cpp"), target="aarch64")
    with pytest.raises(
        TargetError,
        match=rf"built by target 'aarch64' for aarch64, and this machine is {os.uname().machine}: "
        r".*compile for target 'cpu'",
    ):
        _ = binary.kernel_id


@pytest.mark.usefixtures("aarch64")
def test_a_list_of_architectures_is_a_list_of_variants() -> None:
    source = jit.Source(text=ADD, name="add.cpp")
    wanted = ["aarch64", "aarch64:armv8.2-a", "aarch64:armv8.2-a+sve"]
    binaries = [jit.compile(source, target=name) for name in wanted]
    assert [binary.target for binary in binaries] == wanted
    assert len({binary.key for binary in binaries}) == 3


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="names instruction sets of x86-64")
def test_a_variant_with_instructions_that_this_machine_lacks_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would end the process."""
    target = jit.GnuTarget("cpu", ["c++"], march="x86-64-v2", get="", runs_here=True)
    real = target.predefined_macros
    monkeypatch.setattr(
        target,
        "predefined_macros",
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
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        MissingCompilerError,
        match=r"no compiler for target 'aarch64': none of aarch64-linux-gnu-g\+\+ is on PATH\. Get "
        r"one with: apt-get install g\+\+-aarch64-linux-gnu",
    ):
        jit.compile(jit.Source(text=ADD), target="aarch64")
    assert "g++-aarch64-linux-gnu" in jit.toolchain("aarch64").problem


class Acme(jit.Target):
    """A vendor's compiler, complete: it has a language of its own and is told so by `-x c++`."""

    name = "acme"
    languages: Mapping[str, str] = MappingProxyType({".acme": "acme"})
    variables = ("ACME_HOME",)

    def __init__(self, compiler: Path) -> None:
        self.compiler = str(compiler)

    def toolchain(self, memo: jit.Memo, kind: str = "host") -> jit.Toolchain:
        version = "acme 1.0"
        return jit.Toolchain(
            compiler=self.compiler,
            version=version,
            machine="acme-npu",
            isa=("cube", "vector"),
            identity=f"{version} {Path(self.compiler).read_bytes()!r}",
            fingerprint="",
        ).fingerprinted()

    def flags(self, toolchain: jit.Toolchain, language: str, debug: jit.Debug) -> tuple[str, ...]:
        return ("-x", "c++", "-shared", "-fPIC", "-O1")

    def command(self, job: jit.Job) -> list[str]:
        options = self.flags(job.toolchain, job.source.language, job.debug)
        macros = [f"-D{macro}" for macro in job.macros]
        return [
            *(job.toolchain.compiler, *options, *macros, *jit.include_flags()),
            *("-MD", "-MF", job.headers, "-o", job.output, job.file, *job.flags),
        ]


@pytest.fixture
def registry() -> Iterator[None]:
    """Targets that a test registers are gone after it."""
    with target_module.temporary_targets():
        yield


@pytest.fixture
def acme(registry: None, tmp_path: Path) -> Acme:
    compiler = tmp_path / "acmecc"
    compiler.write_text('#!/bin/sh\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    target = Acme(compiler)
    jit.register_target(target)
    return target


def test_a_vendors_compiler_is_one_class(acme: Acme, tmp_path: Path) -> None:
    """Key, store, errors and limits come with the interface."""
    path = tmp_path / "add.acme"
    path.write_text(f'#include "local.h"\n{ADD}')
    (tmp_path / "local.h").write_text("")
    binary = jit.compile(jit.Source(path), macros={"N": 2}, target="acme")
    assert binary == jit.compile(jit.Source(path), macros={"N": 2}, target="acme")
    x = np.zeros(3, np.float32)
    run(binary, x)
    assert x.tolist() == [2, 2, 2]
    (tmp_path / "local.h").write_text("// other\n")
    assert jit.compile(jit.Source(path), macros={"N": 2}, target="acme").key != binary.key
    Path(acme.compiler).write_text('#!/bin/sh\n# upgraded\nexec c++ "$@"\n')
    assert jit.compile(jit.Source(path), macros={"N": 2}, target="acme").key != binary.key
    path.write_text("no")
    with pytest.raises(CompileError, match=r"add\.acme did not compile for target 'acme'"):
        jit.compile(jit.Source(path), target="acme")


@pytest.mark.parametrize(
    ("script", "missing"), [("true", "kernel.so"), ("echo no > kernel.so", "kernel.d")]
)
def test_a_compiler_that_leaves_out_what_it_is_there_for_is_named(
    registry: None, script: str, missing: str
) -> None:
    class Idle(jit.GnuTarget):
        def command(self, job: jit.Job) -> list[str]:
            return ["/bin/sh", "-c", script]

    jit.register_target(Idle("idle", ["c++"], march="native", get=""))
    with pytest.raises(CompileError) as caught:
        jit.compile(jit.Source(text="int run;", name="k.c"), target="idle")
    assert str(caught.value).startswith(
        "k.c: the compiler of target 'idle' ended without an error, twice, and did not write "
        f"{missing}; the command of Idle has to write job.output and job.headers: "
        f"{shlex.join(['/bin/sh', '-c', script])}. Does it work outside of bringup"
    )


def test_other_targets_refuse_a_vendors_language(acme: Acme) -> None:
    source = jit.Source(text=ADD, name="add.acme")
    with pytest.raises(ValueError, match=r"target 'cpu' builds .*, not acme; 'acme' can"):
        jit.compile(source)


def test_a_vendor_has_no_variants_unless_it_says_so(acme: Acme) -> None:
    with pytest.raises(ValueError, match="target 'acme:v2': 'acme' has no variants"):
        jit.compile(jit.Source(text=ADD, name="add.acme"), target="acme:v2")


def test_a_name_is_taken_once_unless_it_is_replaced(acme: Acme) -> None:
    with pytest.raises(ValueError, match=r"there is a target 'acme' already \(Acme\); replace=T"):
        jit.register_target(Acme(Path("other")))
    other = Acme(Path("other"))
    jit.register_target(other, replace=True)
    assert jit.targets()["acme"] is other


@pytest.mark.parametrize("name", ["", "a:b", "a b", "a/$x"])
def test_a_target_has_one_word_for_a_name(registry: None, name: str) -> None:
    target = jit.GnuTarget(name, ["c++"], march="native", get="")
    with pytest.raises(ValueError, match="cannot name a target; expected one word"):
        jit.register_target(target)


def test_something_else_than_a_target_is_refused(registry: None) -> None:
    with pytest.raises(TypeError, match=r"an object of a subclass of jit\.Target, got ABCMeta"):
        jit.register_target(Acme)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("suffix", "words"),
    [(".cpp", r"'\.cpp' cannot mean acme: it means c\+\+"), ("cpp", "'cpp' .*: it has no dot")],
)
def test_a_suffix_means_one_language(registry: None, suffix: str, words: str) -> None:
    target = Acme(Path("x"))
    target.languages = {suffix: "acme"}
    with pytest.raises(ValueError, match=f"suffix {words}"):
        jit.register_target(target)
    assert "acme" not in jit.targets()


@pytest.mark.parametrize("name", ["cpu:", "cpu:-x", "aarch64:a b"])
def test_a_variant_is_a_value_for_march(name: str) -> None:
    with pytest.raises(ValueError, match="expected a value for -march after the colon"):
        jit.compile(jit.Source(text=ADD), target=name)


def test_a_variant_that_the_compiler_does_not_know_is_said() -> None:
    with pytest.raises(ValueError, match=r"target 'cpu:z80': .* does not know -march=z80; .*z80"):
        jit.compile(jit.Source(text=ADD), target="cpu:z80")


@pytest.mark.parametrize("name", ["gpu", "", "cuda2:sm_90", ":x"])
def test_an_unknown_target_lists_those_there_are(name: str) -> None:
    with pytest.raises(ValueError, match=f"target '{name}': expected one of 'cpu', 'sim', 'aarch6"):
        jit.compile(jit.Source(text=ADD), target=name)


@pytest.mark.parametrize("march", ["x86-64", "x86-64-v2", "x86-64-v3", "haswell", "armv8-a"])
def test_code_for_an_older_processor_runs_here(march: str, source: jit.Source, root: Path) -> None:
    try:
        lacking = target_module.find_target(f"cpu:{march}").toolchain(jit.cache()).lacking
    except ValueError:
        pytest.skip(f"the compiler of this machine does not know {march}")
    if lacking:
        pytest.skip(f"this processor lacks {', '.join(lacking)}")
    x = np.zeros(2, np.float32)
    run(jit.compile(source, target=f"cpu:{march}", macros={"N": 3}), x)
    assert x.tolist() == [3, 3]
