"""The key and the world: what a build reads besides source and headers is seen when it changes, and
what cannot change the binary does not change the key.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.unit.jit.support import ADD

from bringup import jit
from bringup.jit.target.debug import Debug
from bringup.jit.target.target import temporary_targets
from bringup.jit.target.toolchain import KnownToolchain

REPOSITORY = Path(__file__).parents[4]
CALLS_FOO = 'extern "C" int foo(); extern "C" int run() { return foo(); }'


def forget() -> None:
    """Makes this process look at the disk again."""
    from bringup.jit.lookup import compilation

    compilation.forget()


def record_of(binary: jit.Binary) -> Mapping[str, list[str]]:
    record: Mapping[str, list[str]] = json.loads((binary.folder / "meta.json").read_text())[
        "record"
    ]
    return record


def differing(first: jit.Binary, second: jit.Binary) -> set[str]:
    one, other = record_of(first), record_of(second)
    return {field for field in one if one[field] != other[field]}


def make_library(path: Path, value: int) -> None:
    """A libfoo of another content for each value, shared or static by its suffix."""
    source = path.with_suffix(".c")
    source.write_text(f"int foo(void) {{ return {value}; }}\n")
    if path.suffix == ".so":
        subprocess.run(["g++", "-shared", "-fPIC", "-xc", str(source), "-o", str(path)], check=True)
        return
    made = path.with_suffix(".o")
    subprocess.run(["g++", "-fPIC", "-c", "-xc", str(source), "-o", str(made)], check=True)
    path.unlink(missing_ok=True)
    subprocess.run(["ar", "rcD", str(path), str(made)], check=True)


@pytest.mark.parametrize("name", ["libfoo.so", "libfoo.a"])
def test_a_linked_library_is_part_of_the_key_by_its_content(tmp_path: Path, name: str) -> None:
    library = tmp_path / name
    source, flags = jit.Source(text=CALLS_FOO), [f"-L{tmp_path}", "-lfoo"]
    make_library(library, 1)
    first = jit.compile(source, flags=flags)
    os.utime(library, (1, 1))
    assert jit.compile(source, flags=flags) == first
    make_library(library, 2)
    second = jit.compile(source, flags=flags)
    assert differing(first, second) == {"inputs"}
    make_library(library, 1)
    forget()
    assert jit.compile(source, flags=flags) == first


def test_the_folder_of_a_library_is_not_part_of_the_key(tmp_path: Path) -> None:
    keys = set()
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        make_library(tmp_path / folder / "libfoo.a", 1)
        flags = [f"-L{tmp_path / folder}", "-lfoo"]
        keys.add(jit.compile(jit.Source(text=CALLS_FOO), flags=flags).key)
    assert len(keys) == 1


def test_a_script_that_a_flag_names_is_part_of_the_key(tmp_path: Path) -> None:
    script = tmp_path / "version.map"
    script.write_text("V1 { global: run; local: *; };\n")
    flags = [f"-Wl,--version-script={script}"]
    first = jit.compile(jit.Source(text=ADD), flags=flags)
    script.write_text("V2 { global: run; local: *; };\n")
    assert differing(first, jit.compile(jit.Source(text=ADD), flags=flags)) == {"inputs"}


@pytest.mark.parametrize(("program", "field"), [("as", "assembler"), ("ld", "linker")])
def test_another_assembler_or_linker_is_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, field: str
) -> None:
    """The compiler starts the first one on PATH."""
    first = jit.compile(jit.Source(text=ADD))
    wrapper = tmp_path / program
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which(program)} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    second = jit.compile(jit.Source(text=ADD))
    assert differing(first, second) == {field}
    monkeypatch.setattr(
        jit.targets()["cpu"], "known_toolchain", KnownToolchain()
    )  # as in another process
    forget()
    wrapper.write_text(f'#!/bin/sh\n# upgraded\nexec /usr/bin/{program} "$@"\n')
    assert differing(second, jit.compile(jit.Source(text=ADD))) == {field}


@pytest.mark.skipif(shutil.which("ld.gold") is None, reason="no ld.gold: apt-get install binutils")
def test_a_linker_that_a_flag_chooses_is_part_of_the_key() -> None:
    toolchain = jit.targets()["cpu"].toolchain(jit.cache())
    job = jit.Job(
        jit.Source(text=ADD), "k.cpp", "k.so", (), ("-fuse-ld=gold",), Debug(), toolchain, Path("/")
    )
    chosen = [Path(path).name for path in jit.targets()["cpu"].tools(job)]
    assert chosen == ["ld.gold"]


def test_link_time_optimisation_brings_its_compiler_into_the_key() -> None:
    plain = jit.compile(jit.Source(text=ADD))
    optimised = jit.compile(jit.Source(text=ADD), flags=["-flto"])
    assert differing(plain, optimised) == {"flags", "inputs"}


class Vendor(jit.GnuTarget):
    variables = ("ACME_LEVEL",)


def test_a_variable_that_a_target_declares_is_part_of_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It reaches the compiler, unlike any other variable."""
    acme = Vendor("acme", ["c++"], march="native", get="", runs_here=True)
    with temporary_targets():
        jit.register_target(acme)
        monkeypatch.setenv("ACME_LEVEL", "1")
        first = jit.compile(jit.Source(text=ADD), target="acme")
        monkeypatch.setenv("ACME_OTHER", "2")
        assert jit.compile(jit.Source(text=ADD), target="acme") == first
        monkeypatch.setenv("ACME_LEVEL", "2")
        other = jit.compile(jit.Source(text=ADD), target="acme")
        assert differing(first, other) == {"environment"}


COMPILE_ELSEWHERE = """
import sys
from bringup import jit
binary = jit.compile(jit.Source(sys.argv[1]), flags=sys.argv[2:])
print(binary.key, binary.path)
"""
TELLS_WHERE_AND_WHEN = """
#include "place.h"
extern "C" const char* run() { return __FILE__ __DATE__ __TIME__ PLACE; }
"""


def test_places_time_and_user_change_neither_the_key_nor_the_binary(tmp_path: Path) -> None:
    """Another folder, home, user, working folder, temporary folder, cache and time zone."""
    found = []
    for place in ("one", "another/and deeper"):
        home = tmp_path / place
        include = home / "include"
        include.mkdir(parents=True)
        (include / "place.h").write_text("#define PLACE __FILE__\n")
        (home / "k.cpp").write_text(TELLS_WHERE_AND_WHEN)
        variables = {
            "BRINGUP_CACHE_DIR": str(home / "cache"),
            "HOME": str(home),
            "USER": place,
            "LOGNAME": place,
            "TMPDIR": str(home),
            "TZ": "Asia/Tokyo" if place == "one" else "UTC",
            "LANG": "de_DE.UTF-8" if place == "one" else "C",
            "CPATH": str(home),
            "PYTHONPATH": str(REPOSITORY / "src"),
        }
        done = subprocess.run(
            [sys.executable, "-c", COMPILE_ELSEWHERE, str(home / "k.cpp"), f"-I{include}"],
            cwd=home,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        key, path = done.stdout.strip().split(" ", 1)
        found.append((key, Path(path).read_bytes()))
    assert found[0] == found[1]
    assert str(tmp_path).encode() not in found[0][1]


def test_another_installation_finds_the_headers_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a compiler answered is remembered for every installation that shares the cache."""
    from bringup.jit.target import toolchain

    kept = toolchain.remember(jit.targets()["cpu"].toolchain(jit.cache()))
    monkeypatch.setattr(toolchain, "bringup_includes", lambda: (str(tmp_path),))
    found = toolchain.recall(kept)
    assert found is not None
    assert found.include_directories == (str(tmp_path),)
