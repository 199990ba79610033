"""The build key: every field of the record changes it, nothing else does."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup import _native, jit
from bringup.jit.builder import request
from bringup.jit.builder.key import KERNEL_ABI, Record, key_of
from bringup.jit.builder.request import Request
from bringup.jit.target.debug import NO_DEBUG
from bringup.jit.target.flags import Macro, render_flags, render_macros
from bringup.jit.target.toolchain import Toolchain

SOURCE = jit.Source(text="int run(void) { return 0; }", name="k.c")
TOOLCHAIN = Toolchain(
    compiler="/usr/bin/c++",
    version="c++ 12",
    machine="x86_64-linux-gnu",
    isa=("__AVX2__ 1", "__FMA__ 1"),
    identity="compiler-digest",
    fingerprint="identity-and-isa",
    assembler="assembler-digest",
    linker="linker-digest",
    runtime="runtime-digest",
    environment=("LC_ALL=C",),
    include_directories=("/include",),
)


@dataclasses.dataclass(frozen=True)
class _Asked(Request):
    """A request whose target has these options."""

    given_options: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        return self.given_options


@dataclasses.dataclass(frozen=True)
class Given:
    """A request, and what its build read."""

    source: jit.Source = SOURCE
    source_digest: str = "source-digest"
    macros: tuple[str, ...] = ("A=1", "B=2")
    target: str = "cpu"
    toolchain: Toolchain = TOOLCHAIN
    options: tuple[str, ...] = ("-O3", "-shared")
    flags: tuple[str, ...] = ("-O2", "-funroll-loops")
    debug: jit.Debug = NO_DEBUG
    input_digests: Sequence[str] = ("library",)
    answers: Sequence[str] = ("opt.h: 1",)
    names: Sequence[str] = ("k.c", "include/x.h")
    header_digests: Sequence[str] = ("first", "second")

    @property
    def _request(self) -> Request:
        return _Asked(
            self.source,
            self.macros,
            self.target,
            self.flags,
            self.toolchain,
            self.debug,
            given_options=self.options,
        )

    def record(self) -> Record:
        return self._request.record(
            self.source_digest, self.header_digests, self.input_digests, self.answers, self.names
        )

    def key(self) -> str:
        return key_of(self.record())

    def request_key(self) -> str:
        return self._request.key(self.source_digest)

    def but(self, **changes: Any) -> Given:
        return dataclasses.replace(self, **changes)


def _toolchain(**changes: Any) -> Given:
    return Given(toolchain=dataclasses.replace(TOOLCHAIN, **changes))


def _source(**changes: Any) -> Given:
    return Given(source=dataclasses.replace(SOURCE, **changes))


# For each field of the record one or more inputs that differ in that field alone.
PERTURBATIONS: dict[str, list[Given]] = {
    "source": [Given(source_digest="another")],
    "headers": [
        Given(header_digests=("first", "changed")),
        Given(header_digests=("second", "first")),
        Given(header_digests=("first",)),
    ],
    "language": [_source(name="k.cpp")],
    "entry": [_source(entry="walk")],
    "abi": [_source(abi="params")],
    "kind": [_source(kind="device")],
    "macros": [Given(macros=("A=1",)), Given(macros=("A=1", "B=3")), Given(macros=())],
    "target": [Given(target="sim")],
    "flags": [
        Given(flags=("-funroll-loops", "-O2")),
        Given(flags=("-O2",)),
        Given(flags=("-O2", "-funroll-loops", "-I/x")),
        Given(options=("-O3",)),
    ],
    "inputs": [
        Given(input_digests=("changed",)),
        Given(input_digests=()),
        Given(input_digests=("library", "library")),
    ],
    "probes": [
        Given(answers=("opt.h: 0",)),
        Given(answers=()),
        Given(answers=("opt.h: 1", "opt.h: 1")),
    ],
    "names": [Given(names=("other.cpp", "include/x.h")), Given(names=())],
    "debug": [
        Given(debug=jit.Debug(assembly=True)),
        Given(debug=jit.Debug(preprocessed=True)),
        Given(debug=jit.Debug(line_info=True)),
        Given(debug=jit.Debug(sanitize="address")),
        Given(debug=jit.Debug(sanitize="undefined")),
    ],
    "compiler": [_toolchain(identity="another")],
    "assembler": [_toolchain(assembler="another")],
    "linker": [_toolchain(linker="another")],
    "runtime": [_toolchain(runtime="another")],
    "environment": [_toolchain(environment=("LC_ALL=C", "VENDOR_HOME=/opt"))],
    "isa": [_toolchain(isa=("__AVX2__ 1",)), _toolchain(machine="aarch64-linux-gnu")],
}
# The schema is the record's own version and has no input.
UNPERTURBED = {"schema"}


def _changed_fields(given_: Given) -> set[str]:
    before, after = Given().record(), given_.record()
    return {field for field in before if list(before[field]) != list(after[field])}


def test_every_field_of_the_record_is_perturbed() -> None:
    assert set(Given().record()) == PERTURBATIONS.keys() | UNPERTURBED


@pytest.mark.parametrize("field", PERTURBATIONS)
def test_a_change_of_the_field_changes_the_key(field: str) -> None:
    """Source, headers, libraries, toolchain, ISA, ABI, environment, debug."""
    for changed in PERTURBATIONS[field]:
        assert _changed_fields(changed) == {field}
        assert changed.key() != Given().key()


FOUND_BY_THE_BUILD = {"headers", "inputs", "probes", "names"}
OF_THE_TOOLCHAIN = {"compiler", "assembler", "linker", "runtime", "isa", "environment"}


@pytest.mark.parametrize("field", sorted(set(PERTURBATIONS) - FOUND_BY_THE_BUILD))
def test_what_is_known_before_compiling_changes_the_request_key(field: str) -> None:
    """What the toolchain is reaches the request key through its fingerprint."""
    for changed in PERTURBATIONS[field]:
        if field in OF_THE_TOOLCHAIN:
            before, after = TOOLCHAIN.fingerprinted(), changed.toolchain.fingerprinted()
            assert Given(toolchain=after).request_key() != Given(toolchain=before).request_key()
        else:
            assert changed.request_key() != Given().request_key()


@pytest.mark.parametrize("field", sorted(Given().record()))
def test_every_change_of_a_field_of_the_record_is_another_key(field: str) -> None:
    """Generated from the record: each value altered, added, dropped, moved."""
    record = Given().record()
    values = tuple(record[field])
    altered = [(*values[:i], f"{value}x", *values[i + 1 :]) for i, value in enumerate(values)]
    dropped = [(*values[:i], *values[i + 1 :]) for i in range(len(values))]
    added = [(*values, ""), ("", *values)]
    moved = [values[::-1]] if values[::-1] != values else []
    variants = {*altered, *dropped, *added, *moved}
    keys = {key_of({**record, field: other}) for other in variants}
    assert key_of(record) not in keys
    assert len(keys) == len(variants) >= len(altered) + 1
    assert key_of({name: record[name] for name in record if name != field}) != key_of(record)


def test_names_and_directories_do_not_change_the_key(tmp_path: Path) -> None:
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "k.c").write_text("int run(void) { return 0; }")
    here, there = jit.Source(tmp_path / "here/k.c"), jit.Source(tmp_path / "there/k.c")
    assert Given(source=here, flags=("-I/a",)).key() == Given(source=there, flags=("-I/b",)).key()
    assert Given(source=here).request_key() != Given(source=there).request_key()
    assert jit.compile(here).key == jit.compile(there).key
    assert jit.compile(jit.Source(text="int run(void) { return 0; }", name="x.c")).key == (
        jit.compile(here).key
    )


def test_absolute_paths_do_not_reach_the_binary(tmp_path: Path) -> None:
    text = 'extern "C" const char* run() { return __FILE__; }'
    contents = []
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "k.cpp").write_text(f"// {folder}\n{text}")
        binary = jit.compile(jit.Source(tmp_path / folder / "k.cpp"))
        contents.append(binary.path.read_bytes())
    assert str(tmp_path).encode() not in contents[0]
    assert contents[0] == contents[1]


def test_native_is_replaced_by_what_it_means() -> None:
    info = jit.toolchain("cpu")
    assert "-march=native" in info.flags
    assert info.isa == tuple(sorted(info.isa))
    assert not any("native" in feature for feature in info.isa)


@settings(max_examples=50)
@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_values_cannot_run_into_each_other(first: list[str], second: list[str]) -> None:
    assert (key_of({"f": first}) == key_of({"f": second})) == (first == second)
    split = key_of({"f": first, "g": second}) == key_of({"f": [*first, *second], "g": []})
    assert split == (second == [])


def test_the_abi_version_is_that_of_the_header() -> None:
    assert _native.core().kernel_abi == KERNEL_ABI


def test_macros_are_sorted_and_rendered_by_type() -> None:
    macros: dict[str, Macro] = {"Z": True, "A": -3, "M": 0.1, "T": "bringup::View<const float, 2>"}
    assert render_macros(macros) == (
        "A=(-3)",
        "M=(0.1)",
        "T=bringup::View<const float, 2>",
        "Z=1",
    )


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("N", 'x"; system("rm', ValueError, r"macro 'N': expected a type, a name"),
        ("N", "1\n#include </etc/passwd>", ValueError, "line ends are not allowed"),
        ("N", "a; b", ValueError, "semicolons"),
        ("N", "a//b", ValueError, "slashes"),
        ("N", "{1}", ValueError, "braces"),
        ("N", float("nan"), ValueError, "macro 'N': expected a finite number, got nan"),
        ("N", 2**64, ValueError, "expected an integer of 64 bits"),
        ("N", None, TypeError, "expected str, int, float or bool, got NoneType"),
        ("N", [1], TypeError, r"got list \(\[1\]\)"),
        ("N=1 -o /tmp/x", 1, ValueError, "expected the name of a C macro"),
        ("1N", 1, ValueError, "macro '1N': expected the name"),
    ],
)
def test_a_bad_macro_is_refused_by_name(
    name: str, value: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        jit.compile(SOURCE, macros={name: value})


@pytest.mark.parametrize(
    ("flags", "error", "message"),
    [
        ("-O2", TypeError, "expected a sequence of flags, got one string"),
        ([3], TypeError, "flag 3: expected str, got int"),
        (["other.cpp"], ValueError, "joined with its value"),
        (["@file"], ValueError, "joined with its value"),
        (["-o/tmp/x"], ValueError, "jit decides that"),
        (["-MF/tmp/x"], ValueError, "jit decides that"),
        (["-save-temps"], ValueError, "jit decides that"),
        (["-fplugin=x.so"], ValueError, "jit decides that"),
        (["-E"], ValueError, "jit decides that"),
        (["-Wl,@/tmp/options"], ValueError, "could not be followed"),
        (["-Wp,-I/tmp"], ValueError, "could not be followed"),
        (["-Wa,-I/tmp"], ValueError, "could not be followed"),
        (["-fmodules-ts"], ValueError, "could not be followed"),
        (["-fprofile-use=/tmp"], ValueError, "could not be followed"),
    ],
)
def test_a_flag_that_would_move_the_output_is_refused(
    flags: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        jit.compile(SOURCE, flags=flags)


def test_ordinary_flags_pass_and_include_directories_become_absolute() -> None:
    flags = ("-march=native", "-DX=1", "-Iinclude", "-fopenmp", "-lm", "-Os")
    rendered = render_flags(flags)
    assert rendered[2] == f"-I{Path.cwd() / 'include'}"
    assert rendered[:2] + rendered[3:] == flags[:2] + flags[3:]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: jit.Source(), TypeError, "needs a path or text=, got neither"),
        (lambda: jit.Source("k.c", text="x"), TypeError, "got both"),
        (lambda: jit.Source("k.py"), ValueError, r"expected a file ending in one of .*got '\.py'"),
        (lambda: jit.Source(text="", name="k"), ValueError, "got 'no suffix'"),
        (lambda: jit.Source(text="", name="a/k.c"), ValueError, "expected a plain file name"),
        (lambda: jit.Source(text="", name="k" * 199 + ".c"), ValueError, "at most 200"),
        (lambda: jit.Source("k.c", entry="a b"), ValueError, "expected the name of a C function"),
        (lambda: jit.Source("k.c", entry=""), ValueError, "expected the name of a C function"),
        (lambda: jit.Source("k.c", abi="cuda"), ValueError, r"abi='cuda'.*'params', 'ascendc'"),
        (lambda: jit.Source("k.c", kind="gpu"), ValueError, r"kind='gpu'.*'host', 'device'"),
    ],
)
def test_a_bad_source_is_refused_when_it_is_made(
    make: Callable[[], jit.Source], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


def test_the_entry_of_an_ascendc_kernel_has_its_launch_name() -> None:
    assert jit.Source("k.c", entry="add", abi="ascendc").symbol == "aclrtlaunch_add"


def test_a_cold_build_hashes_its_request_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hashed: list[bytes] = []

    def counted(content: bytes) -> Any:
        hashed.append(content)
        return hashlib.sha256(content)

    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(request, "hashlib", SimpleNamespace(sha256=counted))
    jit.compile(
        jit.Source(text='extern "C" int hashed_once(void) { return 0; }', entry="hashed_once")
    )
    assert len(hashed) == 1
