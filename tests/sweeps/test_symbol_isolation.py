"""Every kind of C++ symbol that several libraries may define, in two kernels of one process: each
kernel has its own, however it was built, and is gone when it is unloaded.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.sweeps.support import part
from tests.unit.jit.support import run

from bringup import jit


class Kind(NamedTuple):
    """A kind of symbol: a declaration with a name and a value, and how that value is read."""

    text: str
    value: str
    language: str = "c++"


KINDS = {
    "inline variable": Kind("inline float NAME = VALUE;", "NAME"),
    "inline array": Kind("inline float NAME[4] = {0, VALUE};", "NAME[1]"),
    "inline variable, computed": Kind(
        "inline float at(int i) { volatile float n = VALUE; return n + i; }\n"
        "inline float NAME = at(0);",
        "NAME",
    ),
    "inline variable, in a namespace": Kind(
        "namespace n { inline float NAME = VALUE; }", "n::NAME"
    ),
    "inline thread_local": Kind("inline thread_local float NAME = VALUE;", "NAME"),
    "static in an inline function": Kind(
        "inline float& NAME() { static float kept = VALUE; return kept; }", "NAME()"
    ),
    "static in an inline function, computed": Kind(
        "struct S { float f; S() { volatile float n = VALUE; f = n; } };\n"
        "inline S& NAME() { static S kept; return kept; }",
        "NAME().f",
    ),
    "static thread_local in an inline function": Kind(
        "inline float& NAME() { static thread_local float kept = VALUE; return kept; }", "NAME()"
    ),
    "static in a function template": Kind(
        "template <class T> T& NAME() { static T kept = VALUE; return kept; }", "NAME<float>()"
    ),
    "static in a member function": Kind(
        "struct NAME { float& get() { static float kept = VALUE; return kept; } };", "NAME().get()"
    ),
    "static in a member of a template": Kind(
        "template <class T> struct NAME { T& get() { static T kept = VALUE; return kept; } };",
        "NAME<float>().get()",
    ),
    "static in a constructor": Kind(
        "struct NAME { float f; NAME() { static float kept = VALUE; f = kept++ - 0; } };",
        "NAME().f",
    ),
    "static in a lambda": Kind(
        "inline auto NAME = [] { static float kept = VALUE; return kept; };", "NAME()"
    ),
    "static in a generic lambda": Kind(
        "inline auto NAME = [](auto n) { static float kept = VALUE; return kept + n; };",
        "NAME(0.0f)",
    ),
    "static member of a template": Kind(
        "template <class T> struct NAME { static T kept; };\n"
        "template <class T> T NAME<T>::kept = VALUE;",
        "NAME<float>::kept",
    ),
    "static inline member": Kind(
        "struct NAME { static inline float kept = VALUE; };", "NAME::kept"
    ),
    "static inline thread_local member": Kind(
        "struct NAME { static inline thread_local float kept = VALUE; };", "NAME::kept"
    ),
    "variable template": Kind("template <class T> T NAME = VALUE;", "NAME<float>"),
    "variable template, specialised": Kind(
        "template <class T> T NAME = 0;\ntemplate <> inline float NAME<float> = VALUE;",
        "NAME<float>",
    ),
    "variable template, instantiated": Kind(
        "template <class T> T NAME = VALUE;\ntemplate float NAME<float>;", "NAME<float>"
    ),
    "inline constexpr array": Kind(
        "inline constexpr float NAME[64] = {VALUE, VALUE};\n"
        "const float* volatile pointer_to_NAME = NAME;",
        "pointer_to_NAME[1]",
    ),
    "inline function": Kind(
        "__attribute__((noinline)) inline float NAME() { return VALUE; }", "NAME()"
    ),
    "function template": Kind(
        "template <class T> __attribute__((noinline)) T NAME() { return VALUE; }", "NAME<float>()"
    ),
    "virtual function": Kind(
        "struct NAME { virtual float get() { return VALUE; } virtual ~NAME() = default; };\n"
        "inline NAME* volatile made_NAME = new NAME;",
        "made_NAME->get()",
    ),
    "weak variable": Kind("__attribute__((weak)) float NAME = VALUE;", "NAME"),
    "global variable": Kind("float NAME = VALUE;", "NAME"),
    "global function": Kind("__attribute__((noinline)) float NAME() { return VALUE; }", "NAME()"),
    "C, global variable": Kind("float NAME = VALUE;", "NAME", "c"),
    "C, weak variable": Kind("__attribute__((weak)) float NAME = VALUE;", "NAME", "c"),
    "C, static in a function": Kind(
        "float* NAME(void) { static float kept = VALUE; return &kept; }", "*NAME()", "c"
    ),
}
ENTRY = {
    "c++": """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<float, 1> x(args[0]);
  x(0) = VALUE_OF;
  return 0;
}
""",
    "c": """
#include "bringup/kernel.h"
int32_t run(void** args, int32_t count, const bringup_ctx* ctx) {
  ((float*)((DLTensor*)args[0])->data)[0] = VALUE_OF;
  return 0;
}
""",
}
SUFFIX = {"c": ".c", "c++": ".cpp"}


class Vendor(jit.GnuTarget):
    """A target whose compiler has no option against unique symbols."""

    def flags(self, toolchain: jit.Toolchain, language: str, debug: jit.Debug) -> tuple[str, ...]:
        """Return the options of g++ but for that one."""
        options = super().flags(toolchain, language, debug)
        return tuple(option for option in options if option != "-fno-gnu-unique")


def named(kind: Kind, name: str) -> tuple[str, str]:
    return kind.text.replace("NAME", name), kind.value.replace("NAME", name)


def source(folder: Path, kind: Kind, name: str, file: str, value: int | None = None) -> jit.Source:
    """A kernel with the symbol; its value is a macro where it is not given."""
    text, expression = named(kind, name)
    text += ENTRY[kind.language].replace("VALUE_OF", expression)
    if value is not None:
        text = f"#define VALUE {value}\n{text}"
    path = folder / f"{file}{SUFFIX[kind.language]}"
    path.write_text(text)
    return jit.Source(path)


Binaries = Sequence[tuple[jit.Binary, int]]


def variants(folder: Path, kind: Kind, name: str, **options: Any) -> Binaries:
    given = source(folder, kind, name, "variants")
    return [(jit.compile(given, macros={"VALUE": n}, **options), n) for n in (2, 3)]


def unoptimised(folder: Path, kind: Kind, name: str) -> Binaries:
    return variants(folder, kind, name, flags=["-O0"])


def another_target(target: str) -> Callable[[Path, Kind, str], Binaries]:
    return lambda folder, kind, name: variants(folder, kind, name, target=target)


def unrelated(folder: Path, kind: Kind, name: str) -> Binaries:
    """Two authors chose one name."""
    sources = [(source(folder, kind, name, f"author{n}", n), n) for n in (2, 3)]
    return [(jit.compile(one), n) for one, n in sources]


def edited(folder: Path, kind: Kind, name: str) -> Binaries:
    """One file, written anew while its first kernel is loaded."""
    binaries = []
    for n in (2, 3):
        binary = jit.compile(source(folder, kind, name, "edited", n))
        assert binary.kernel_id
        binaries.append((binary, n))
    return binaries


def archived(folder: Path, kind: Kind, name: str) -> Binaries:
    """The symbol comes out of a library that was compiled without the kit."""
    text, expression = named(kind, name)
    binaries = []
    for n in (2, 3):
        here = folder / f"lib{n}"
        here.mkdir()
        part = here / f"part{SUFFIX[kind.language]}"
        extern = 'extern "C" ' if kind.language == "c++" else ""
        part.write_text(
            f"#define VALUE {n}\n{text}\n{extern}float part(void) {{ return {expression}; }}\n"
        )
        options = ["-fPIC", "-O2", *(["-std=c++17"] if kind.language == "c++" else [])]
        subprocess.run(
            ["g++" if extern else "gcc", *options, "-c", part.name], cwd=here, check=True
        )
        subprocess.run(["ar", "rc", "libpart.a", "part.o"], cwd=here, check=True)
        caller = here / f"caller{SUFFIX[kind.language]}"
        declared = f"{extern}float part(void);"
        caller.write_text(declared + ENTRY[kind.language].replace("VALUE_OF", "part()"))
        binaries.append((jit.compile(jit.Source(caller), flags=[f"-L{here}", "-lpart"]), n))
    return binaries


WAYS: dict[str, Callable[[Path, Kind, str], Binaries]] = {
    "variants": variants,
    "unoptimised": unoptimised,
    "sim": another_target("sim"),
    "clang": another_target("clang"),
    "vendor": another_target("vendor"),
    "unrelated": unrelated,
    "edited": edited,
    "archived": archived,
}
CASES = list(itertools.product(KINDS, WAYS))


@pytest.fixture(autouse=True)
def _targets() -> Any:
    from bringup.jit.target.target import temporary_targets

    with temporary_targets():
        for made in (
            Vendor("vendor", ["g++"], march="native", get="", runs_here=True),
            jit.GnuTarget("clang", ["clang++"], march="native", get="", runs_here=True),
        ):
            jit.register_target(made)
        yield


@pytest.mark.parametrize(("kind", "way"), part(CASES))
def test_a_kernel_has_its_own_symbols_and_goes_with_them(
    kind: str, way: str, tmp_path: Path
) -> None:
    if way == "clang" and (problem := jit.toolchain("clang").problem):
        pytest.skip(problem)
    # A name of its own: what one case shares with the process shall not decide another.
    binaries = WAYS[way](tmp_path, KINDS[kind], f"name_{CASES.index((kind, way))}")
    kernels = [binary.kernel_id for binary, _ in binaries]
    assert len(set(kernels)) == len(binaries)
    got = []
    for binary, _ in binaries:
        x = np.zeros(1, np.float32)
        run(binary, x)
        got.append(float(x[0]))
    assert got == [value for _, value in binaries]
    jit.cache().unload()
    mapped = Path("/proc/self/maps").read_text()
    assert not [str(binary.path) for binary, _ in binaries if str(binary.path) in mapped]
