"""Sources drawn from includes, conditions, probes and macros, flags that define and include more,
and files that come, go and change: what the cache takes for unchanged preprocesses to the same
text, and what has nothing to do with a kernel compiles nothing. The oracle is the preprocessor, and
for assembled data the compiler.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from tests.sweeps.support import sized

from bringup import jit
from bringup.jit.builder.build import search_of_build
from bringup.jit.files.depfile import read_depfile
from bringup.jit.files.headers import Header, Searched, read_header, unchanged
from bringup.jit.lookup import compilation

FOLDERS = ("source", "first", "second", "quoted")
HEADERS = ("a.h", "b.h", "sub/c.h", "sub/d.h")
FORCED = "forced.h"  # what a flag includes before the source
PROBED = ("p.h", "sub/q.h", FORCED, *HEADERS)
UNRELATED = ("unrelated.h", "sub/unrelated.h", "p.hpp", "k.cpp.orig")
PRELUDE = """
#define ASK(name) __has_include(name)
#define BOTH(one, two) (__has_include(one) && ASK(two))
#define NAMED "p.h"
#define OTHER <sub/q.h>
#define PROBE __has_include
#define PASTED(one, two) one##two
#ifndef ALIAS
#define ALIAS(name) 0
#endif
#ifndef GIVEN
#define GIVEN "p.h"
#endif
"""
# Between two lines of a source: what looks like the beginning of a comment, and is none.
MISLEADING = (
    """int thousand = 1'000; const char* quoted = "'/*";""",
    'const char* raw = R"x(" /* )x";',
    "#if 0\ndon't /*\n#endif",
    "// a question??/",
    "",
)
FLAGS = (
    "-DMACRO",
    "-DMACRO=0",
    "-DALIAS=__has_include",
    "-DALIAS(name)=__has_include(name)",
    '-DGIVEN="sub/q.h"',
    f"-include{FORCED}",
    f"-imacros{FORCED}",
)


def lines(random: Random, headers: tuple[str, ...]) -> str:
    """Some lines of a source or header; every choice that is taken leaves a mark."""
    made = []
    for _ in range(random.randint(1, 4)):
        name, other = random.choice(PROBED), random.choice(PROBED)
        mark = f"mark_{random.randrange(10**6)}"
        condition = random.choice(
            [
                f'__has_include("{name}")',
                f"__has_include(<{name}>)",
                f"ASK(<{name}>)",
                f'BOTH("{name}", <{other}>)',
                f'!PROBE("{name}") /* "{other}" */',
                "__has_include(NAMED)",
                "ASK(OTHER)",
                f"defined(MACRO) || \\\n __has_include(<{name}>)",
                f"__has_include_next(<{name}>)",
                f'ALIAS("{name}")',
                "__has_include(GIVEN)",
                "defined(MACRO)",
            ]
        )
        hash_if = random.choice(["#if", "\v#\fif", "/* a\n b */ # /**/ if", "%:if"])
        made.append(f"{hash_if} {condition}\n{mark}_yes\n#else\n{mark}_no\n#endif")
        made.append(random.choice(MISLEADING))
    for _ in range(random.randint(0, 2) if headers else 0):
        name = random.choice(headers)
        include = random.choice([f'#include "{name}"', f"#include <{name}>", f"#define N <{name}>"])
        if include.startswith("#define"):
            include = f"#undef N\n{include}\n#include N"
        guarded = random.random() < 0.5
        made.append(f"#if ASK(<{name}>)\n{include}\n#endif" if guarded else include)
    random.shuffle(made)
    return "\n".join(made) + "\n"


@dataclass
class Project:
    """Folders with a source, and the flags that it is compiled with."""

    folder: Path
    random: Random
    flags: list[str] = field(default_factory=list)
    is_pasted: bool = False

    def write(self) -> None:
        for name in FOLDERS:
            (self.folder / name / "sub").mkdir(parents=True)
        for i, name in enumerate(HEADERS):  # a header includes those after it
            for place in self.random.sample(FOLDERS, 2):
                self.put(place, name, i + 1)
        for place in self.random.sample(FOLDERS, 2):
            self.put(place, FORCED, 0)
        text = PRELUDE + lines(self.random, HEADERS)
        self.is_pasted = self.random.random() < 0.1
        if self.is_pasted:
            text += '#if PASTED(__has,_include)("p.h")\nmark\n#endif\n'
        (self.folder / "source" / "k.cpp").write_text(text)
        kind = self.random.choice(["-I", "-I", "-isystem", "-idirafter"])
        self.flags = [
            f"-I{self.folder / 'first'}",
            f"{kind}{self.folder / 'second'}",
            f"-iquote{self.folder / 'quoted'}",
            *self.random.sample(FLAGS, self.random.randrange(3)),
        ]

    def put(self, place: str, name: str, later: int) -> None:
        (self.folder / place / name).write_text(
            f"{PRELUDE if name == FORCED else ''}from_{place}_{self.random.randrange(10**6)}\n"
            f"{lines(self.random, HEADERS[later:])}"
        )

    @property
    def source(self) -> jit.Source:
        return jit.Source(self.folder / "source" / "k.cpp")

    def preprocessed(self) -> tuple[str, list[str]] | None:
        """What the preprocessor makes of it, and the headers that it read; None for an error."""
        depfile = self.folder / "k.d"
        command = ["g++", "-E", "-P", "-std=c++17", "-MD", "-MF", depfile, "-MT", "kernel"]
        done = subprocess.run(
            [*command, *self.flags, self.source.path],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,  # where -include looks first
        )
        return (done.stdout, read_depfile(depfile)[1:]) if done.returncode == 0 else None

    def change(self) -> tuple[str, bool]:
        """Changes one file; what was done, and whether it has nothing to do with the kernel."""
        place = self.folder / self.random.choice(FOLDERS)
        how = self.random.choice(["toggle", "toggle", "rewrite", "touch", "unrelated", "folder"])
        if how == "toggle":
            file = place / self.random.choice(PROBED)
            if file.exists():
                file.unlink()
            elif file.name in ("p.h", "q.h"):
                file.write_text("")
            else:
                name = str(file.relative_to(place))
                self.put(place.name, name, 0 if name == FORCED else len(HEADERS))
            return f"toggle {file}", False
        if how == "rewrite":
            there = [path for path in sorted(self.folder.rglob("*.h")) if path.stat().st_size]
            if there:
                file = self.random.choice(there)
                file.write_text(file.read_text() + f"more_{self.random.randrange(10**6)}\n")
            return "rewrite", False
        if how == "touch":
            for file in sorted(self.folder.rglob("*.*")):
                os.utime(file)
            return "touch", True
        if how == "folder":
            (place / f"a_folder_{self.random.randrange(10**6)}").mkdir()
            return "folder", True
        (place / self.random.choice(UNRELATED)).write_text(str(self.random.random()))
        return "unrelated", True


@dataclass(frozen=True)
class State:
    """What one look at the files found."""

    text: str
    identity: tuple[object, ...]
    headers: tuple[Header, ...]
    searched: Searched

    def holds(self) -> bool:
        return all(map(unchanged, self.headers)) and self.searched.holds()


def look(project: Project) -> State | None:
    start_ns = time.time_ns()
    found = project.preprocessed()
    if found is None:
        return None
    text, paths = found
    request = compilation.request_for(project.source, {}, "cpu", project.flags, None, jit.cache())
    looked = search_of_build(request, str(project.source.path), paths, start_ns)
    assert bool(looked.untracked) == project.is_pasted
    headers = tuple(map(read_header, paths))
    identity = (tuple(header.digest for header in headers), looked.answers)
    return State(text, identity, headers, looked.searched.joined(looked.probed))


@pytest.mark.parametrize("seed", range(sized(12, 700)))
def test_what_counts_as_unchanged_preprocesses_to_the_same(
    seed: int, tmp_path: Path, sweep_counts: Counter[str]
) -> None:
    project = Project(tmp_path, Random(seed))
    project.write()
    state, texts = look(project), dict[object, str]()
    if project.is_pasted:  # a kernel that is refused
        sweep_counts["refused"] += 1
        return
    for _ in range(8):
        done, unrelated = project.change()
        now = look(project)
        sweep_counts["changes"] += 1
        if state is not None and state.holds():
            assert now is not None, done
            assert now.text == state.text, done
            sweep_counts["unchanged"] += 1
            continue
        assert not (unrelated and state is not None), f"compiled again after: {done}"
        if now is not None:
            assert texts.setdefault(now.identity, now.text) == now.text, done
            assert now.holds(), done
        state = now


BODY = """
#if __has_include("opt.h")
#define PROBED 1
#else
#define PROBED 0
#endif
#include "n.h"
__asm__(".section .rodata\\n.global data\\n.hidden data\\ndata:\\n"
        ".incbin \\"{data}\\"\\n"
        ".incbin \\"found.bin\\"\\n.previous\\n");
extern "C" {{
extern const unsigned char data[2];
int run() {{ return data[1] * 1000 + data[0] * 100 + N * 10 + PROBED; }}
}}
"""


@pytest.mark.parametrize("seed", range(sized(1, 20)))
def test_a_kernel_is_the_one_of_its_files(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sweep_counts: Counter[str]
) -> None:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "cache"))
    random, data = Random(seed), tmp_path / "data.bin"
    probed, header = tmp_path / "opt.h", tmp_path / "n.h"
    source = tmp_path / "k.cpp"
    source.write_text(BODY.format(data=data))
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    flags = [f"-I{folder}" for folder in folders]
    (folders[1] / "found.bin").write_bytes(b"\1")
    for _ in range(10):
        earlier = random.randrange(2)
        first = folders[0] / "found.bin"
        first.write_bytes(b"\2") if earlier else first.unlink(missing_ok=True)
        byte, number, there = random.randrange(3), random.randrange(3), random.randrange(2)
        data.write_bytes(bytes([byte]))
        header.write_text(f"#define N {number}\n")
        probed.write_text("") if there else probed.unlink(missing_ok=True)
        compilation.forget()
        binary = jit.compile(jit.Source(source), flags=flags)
        expected = (1 + earlier) * 1000 + byte * 100 + number * 10 + there
        assert ctypes.CDLL(str(binary.path)).run() == expected
        sweep_counts["kernels"] += 1
