"""A kernel is built again when what its flags name changes: members of thin archives, and folders
and headers that appear after the first build.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests.sweeps.support import part
from tests.unit.jit.support import forget, run

from bringup import jit

# A sysroot has no headers of C, so there are none.
ENTRY = """
%s
extern "C" int run(void** args, int, const void*) {
  **(float**)args[0] = VALUE;
  return 0;
}
"""


class Case(NamedTuple):
    """A source with its flags, before and after a change: the second value is 2, the first 1.

    Attributes:
        flags: of both builds.
        before: prepares the folder.
        after: makes the change.
        text: what the source says before its entry.
    """

    flags: tuple[str, ...]
    before: Callable[[Path], None]
    after: Callable[[Path], None]
    text: str = "#include <value.h>"


def put(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#define VALUE {value}\n")


def make_object(folder: Path, value: int, name: str = "part.o") -> None:
    (folder / "part.c").write_text(f"int part(void) {{ return {value}; }}\n")
    command = ["gcc", "-fPIC", "-c", "part.c", "-o", name]
    subprocess.run(command, cwd=folder, check=True)


def archived(*commands: str, name: str = "part.o") -> Callable[[Path], None]:
    def before(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        make_object(folder, 1, name)
        for command in commands:
            words = command.replace("HERE", str(folder)).split()
            subprocess.run(words, cwd=folder, check=True)

    return before


def archive(flags: tuple[str, ...], *commands: str, name: str = "part.o", script: str = "") -> Case:
    def before(folder: Path) -> None:
        archived(*commands, name=name)(folder)
        if script:
            (folder / "libs.so").write_text(script)

    text = 'extern "C" int part(void);\n#define VALUE part()'
    return Case(flags, before, lambda folder: make_object(folder, 2, name), text)


LONG = "a_name_that_is_longer_than_the_header_of_a_member_has_room_for.o"
THIN = "ar rcT libq.a part.o"
ARCHIVES = {
    "thin": archive(("-LHERE", "-lq"), THIN),
    "thin, relative": archive(("-L.", "-lq"), THIN),
    "thin, by its file": archive(("-LHERE", "-l:libq.a"), THIN),
    "thin, to the linker": archive(("-Wl,HERE/libq.a",), THIN),
    "thin, whole": archive(
        ("-LHERE", "-Wl,--whole-archive", "-lq", "-Wl,--no-whole-archive"), THIN
    ),
    "thin, as a script": archive(("-LHERE", "-ls"), THIN, script="INPUT(libq.a)"),
    "thin, absolute member": archive(("-LHERE", "-lq"), "ar rcPT libq.a HERE/part.o"),
    "thin, in a folder": archive(("-LHERE", "-lq"), "ar rcT libq.a sub/part.o", name="sub/part.o"),
    "thin, long name": archive(("-LHERE", "-lq"), f"ar rcT libq.a {LONG}", name=LONG),
    "thin, without an index": archive(("-LHERE", "-lq"), "ar rcTS libq.a part.o", "ranlib libq.a"),
    "thin in thin": archive(("-LHERE", "-lq"), "ar rcT libr.a part.o", "ar rcT libq.a libr.a"),
    "thin in thin in thin": archive(
        ("-LHERE", "-lq"),
        "ar rcT libt.a part.o",
        "ar rcT libr.a libt.a",
        "ar rcT libq.a libr.a",
    ),
}


def header(flags: tuple[str, ...], first: str, then: str) -> Case:
    """The header is in one folder at first, and then also where it is found before."""

    def before(folder: Path) -> None:
        put(folder / first / "value.h", 1)

    return Case(flags, before, lambda folder: put(folder / then / "value.h", 2))


LAST = "-idirafterHERE/last"
HEADERS = {
    "-I": header(("-IHERE/later", "-IHERE/first"), "first", "later"),
    "-I, relative": header(("-Ilater", "-Ifirst"), "first", "later"),
    "-I, deep": header(("-IHERE/a/b/c", "-IHERE/first"), "first", "a/b/c"),
    "-isystem": header(("-isystemHERE/later", "-isystemHERE/first"), "first", "later"),
    "-idirafter": header(("-idirafterHERE/later", LAST), "last", "later"),
    "--include-directory": header(("--include-directory=HERE/later", LAST), "last", "later"),
    "--include-directory, relative": header(("--include-directory=later", LAST), "last", "later"),
    "--sysroot": header(("--sysroot=HERE/root", LAST), "last", "root/usr/include"),
    "--sysroot, relative": header(("--sysroot=root", LAST), "last", "root/usr/include"),
    "--sysroot, local": header(("--sysroot=HERE/root", LAST), "last", "root/usr/local/include"),
    "-isysroot": header(("-isysrootHERE/root", LAST), "last", "root/usr/include"),
    "-isysroot, relative": header(("-isysrootroot", LAST), "last", "root/usr/include"),
    "-I=": header(("--sysroot=HERE/root", "-I=/inc", LAST), "last", "root/inc"),
    "-I=, relative root": header(("--sysroot=root", "-I=/inc", LAST), "last", "root/inc"),
    "-isystem=": header(("--sysroot=HERE/root", "-isystem=/inc", LAST), "last", "root/inc"),
    "-idirafter=": header(("--sysroot=HERE/root", "-idirafter=/inc", LAST), "last", "root/inc"),
    "-I$SYSROOT": header(("--sysroot=HERE/root", "-I$SYSROOT/inc", LAST), "last", "root/inc"),
    "a probe in a sysroot": Case(
        ("--sysroot=HERE/root",),
        lambda _: None,
        lambda folder: put(folder / "root/usr/include/value.h", 2),
        "#if __has_include(<value.h>)\n#include <value.h>\n#else\n#define VALUE 1\n#endif",
    ),
}
CASES = {**ARCHIVES, **HEADERS}


@pytest.mark.parametrize(
    "name", part(list(CASES), always=["thin", "thin in thin", "--sysroot", "-I=, relative root"])
)
def test_a_kernel_follows_what_its_flags_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "cache"))
    case = CASES[name]
    case.before(tmp_path)
    source = jit.Source(text=ENTRY % case.text, name="later.cpp")
    flags = [flag.replace("HERE", str(tmp_path)) for flag in case.flags]
    seen = []
    for change in (lambda _: None, case.after, lambda _: None):
        change(tmp_path)
        x = np.zeros(1, np.float32)
        run(jit.compile(source, flags=flags), x)
        seen.append(int(x[0]))
        forget()  # the next one looks as a new process does
    assert seen == [1, 2, 2]
