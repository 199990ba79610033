"""What a build depends on besides the files that it read: files that probes ask for, data that is
assembled, headers and libraries that would be found before others.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.jit.support import forget

from bringup import jit
from bringup.errors import CompileError
from bringup.jit.source.include_scan import probes_of


def value(source: jit.Source, *flags: str, target: str = "cpu") -> int:
    """What the kernel returns, asked as a new process asks."""
    forget()
    path = jit.compile(source, flags=flags, target=target).path
    return int(ctypes.CDLL(str(path)).run())


def write(folder: Path, body: str, name: str = "k.cpp") -> jit.Source:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(body)
    return jit.Source(folder / name)


PROBE = """
#if {condition}
extern "C" int run() {{ return 1; }}
#else
extern "C" int run() {{ return 0; }}
#endif
"""
CONDITIONS = {
    "literal": '__has_include("opt.h")',
    "brackets": "__has_include(<opt.h>)",
    "comment": '__has_include /* a */ ( "opt.h" ) // "other.h"',
    "guarded": 'defined(__has_include) && __has_include("opt.h")',
    "continued": '__has_\\\ninclude("op\\\nt.h")',
    "macro": "__has_include(OPT)",
    "alias": 'PROBE("opt.h")',
    "forwarded": 'HAS_IT(1, "opt.h")',
    "forwarded twice": "BOTH(<opt.h>)",
    "two parameters": 'EITHER("none.h", <opt.h>)',
    "next": "__has_include_next(<opt.h>)",
}
DEFINITIONS = """
#define OPT "opt.h"
#define PROBE __has_include
#define HAS_IT(unused, name) (defined(__has_include) && __has_include(name))
#define BOTH(name) (HAS_IT(0, name))
#define EITHER(one, two) (__has_include(one) || BOTH(two))
"""


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_file_that_a_probe_asks_for_is_part_of_the_kernel(
    root: Path, tmp_path: Path, condition: str
) -> None:
    source = write(tmp_path / "s", DEFINITIONS + PROBE.format(condition=CONDITIONS[condition]))
    folder = tmp_path / "include"
    folder.mkdir()
    flags = f"-I{folder}"
    assert value(source, flags) == 0
    (folder / "opt.h").write_text("")
    assert value(source, flags) == 1
    (folder / "opt.h").unlink()
    assert value(source, flags) == 0


WRITTEN = {
    "a number with separators": """int n = 1'000; const char* s = "'/*";
{probe}
const char* t = "*/";""",
    "a raw string": 'const char* s = R"x(" /*)x";\n{probe}\n/* */',
    "a raw string of wide characters": 'const wchar_t* s = LR"(" /*)";\n{probe}\n/* */',
    "a quote that nobody closes": "#if 0\ndon't /*\n#endif\n{probe}\n/* */",
    "a vertical tab": "\v#\f{probe_without_hash}",
    "a byte order mark": "\ufeff{probe}",
    "a comment before the line": "/* a\n b */ # /* x */ {probe_without_hash}",
    "a line that looks joined": "// what??/\n{probe}",
    "carriage returns": '#define OPT "opt.h"\r\n#if __has_include(OPT)\r\n{rest}',
}


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_a_probe_is_found_where_a_compiler_finds_it(
    root: Path, tmp_path: Path, text: str, counted: Callable[[], int]
) -> None:
    probe = PROBE.format(condition=CONDITIONS["literal"]).strip()
    parts = {"probe": probe, "probe_without_hash": probe[1:], "rest": probe.partition("\n")[2]}
    source = write(tmp_path / "s", text.format(**parts))
    assert [value(source), value(source), counted()] == [0, 0, 1]
    (tmp_path / "s" / "opt.h").write_text("")
    assert value(source) == 1


@pytest.mark.parametrize(
    "condition",
    ['C(__has,_include)("opt.h")', 'C(__ha, s_include)("opt.h")', 'C(__has_inc,lude)("opt.h")'],
)
def test_a_probe_whose_name_is_pasted_is_refused(
    root: Path, tmp_path: Path, condition: str
) -> None:
    text = f"#define C(a, b) a##b\n{PROBE.format(condition=condition)}"
    with pytest.raises(CompileError, match="is not known from the text"):
        jit.compile(write(tmp_path / "s", text))


def test_a_probe_in_a_comment_is_none(tmp_path: Path) -> None:
    path = tmp_path / "k.cpp"
    path.write_text("int n = 1'000; /* '\n#if __has_include(<a.h>)\n#endif\n*/ char c = '\"';")
    assert probes_of([str(path)]).asked == ()


def test_a_probe_in_a_header_with_its_name_in_another_one_is_seen(
    root: Path, tmp_path: Path
) -> None:
    source = write(tmp_path / "s", '#include "has.h"\n#include "use.h"\n')
    (tmp_path / "s/has.h").write_text("#define ASK(x) __has_include(x)\n#define NAME <opt.h>\n")
    (tmp_path / "s/use.h").write_text(PROBE.format(condition="ASK(NAME)"))
    assert value(source, f"-I{tmp_path}") == 0
    (tmp_path / "opt.h").write_text("")
    assert value(source, f"-I{tmp_path}") == 1


def test_the_next_header_may_be_in_a_folder_for_quotes(root: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "s", '#include "b.h"\n')
    (tmp_path / "s/b.h").write_text(PROBE.format(condition="__has_include_next(<p.h>)"))
    (tmp_path / "q").mkdir()
    assert value(source, f"-iquote{tmp_path / 'q'}") == 0
    (tmp_path / "q/p.h").write_text("")
    assert value(source, f"-iquote{tmp_path / 'q'}") == 1


def test_the_answer_and_not_the_content_of_a_probed_file_counts(
    root: Path, tmp_path: Path, counted: Callable[[], int]
) -> None:
    source = write(tmp_path / "s", PROBE.format(condition=CONDITIONS["literal"]))
    (tmp_path / "s" / "opt.h").write_text("// one\n")
    assert value(source) == 1
    (tmp_path / "s" / "opt.h").write_text("// another\n")
    (tmp_path / "s" / "unrelated.h").write_text("")
    assert value(source) == 1
    assert counted() == 1


def test_a_link_that_leads_to_a_file_later_is_seen(root: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "s", PROBE.format(condition=CONDITIONS["literal"]))
    (tmp_path / "s" / "opt.h").symlink_to(tmp_path / "elsewhere.h")
    assert value(source) == 0
    (tmp_path / "elsewhere.h").write_text("")
    assert value(source) == 1


def test_a_folder_is_no_header(root: Path, tmp_path: Path, counted: Callable[[], int]) -> None:
    source = write(tmp_path / "s", PROBE.format(condition=CONDITIONS["literal"]))
    assert value(source) == 0
    (tmp_path / "s" / "opt.h").mkdir()
    assert value(source) == 0
    assert counted() == 1
    (tmp_path / "s" / "opt.h").rmdir()
    (tmp_path / "s" / "opt.h").write_text("")
    assert value(source) == 1


@pytest.mark.parametrize(
    "condition",
    ["__has_include(STR(opt.h))", "__has_include(UNKNOWN)", "CAT(__has_, include)(<a>)"],
)
def test_a_probe_that_the_text_does_not_tell_is_refused(
    root: Path, tmp_path: Path, condition: str
) -> None:
    text = f"#define STR(x) #x\n#define CAT(a, b) a##b\n{PROBE.format(condition=condition)}"
    source = write(tmp_path / "s", text)
    with pytest.raises(CompileError, match=r"k\.cpp") as refused:
        jit.compile(source)
    assert "is not known from the text" in str(refused.value) or "error:" in str(refused.value)


@pytest.mark.parametrize("where", ["k.cpp", "data.h"])
def test_embed_is_refused_by_name(root: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "data.h").write_text("")
    source = write(tmp_path / "s", '#include "data.h"\nextern "C" int run() { return 0; }\n')
    with (tmp_path / "s" / where).open("a") as file:
        file.write('#if 0\nconst char data[] = {\n#embed "x.bin"\n};\n#endif\n')
    with pytest.raises(CompileError, match=rf"{where}: .*#embed is not supported"):
        jit.compile(source)


ASSEMBLED = """
__asm__(".section .rodata\\n.global data\\n.hidden data\\ndata:\\n{directive}\\n.previous\\n");
extern "C" {{ extern const unsigned char data; int run() {{ return data; }} }}
"""


def test_data_that_is_assembled_is_part_of_the_kernel(root: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.bin"
    source = write(tmp_path / "s", ASSEMBLED.format(directive=f'.incbin \\"{data}\\"'))
    for expected in (7, 9, 7):
        data.write_bytes(bytes([expected]))
        assert value(source) == expected


def test_data_of_an_included_assembly_file_in_a_folder_is_found_earlier(
    root: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    (second / "data.bin").write_bytes(b"\x05")
    (second / "data.s").write_text('.incbin "data.bin"\n')
    source = write(tmp_path / "s", ASSEMBLED.format(directive='.include \\"data.s\\"'))
    flags = (f"-I{first}", f"-I{second}")
    assert value(source, *flags) == 5
    (second / "data.bin").write_bytes(b"\x06")
    assert value(source, *flags) == 6
    (first / "data.bin").write_bytes(b"\x07")
    assert value(source, *flags) == 7


def test_an_assembler_that_does_not_say_what_it_read_needs_literal_paths(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "clang-like"  # called like clang: it is not asked by -Wa,--MD
    compiler.write_text('#!/bin/sh\nexec g++ -D__clang__=1 "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("BRINGUP_JIT_CXX", str(compiler))
    data = tmp_path / "data.bin"
    source = write(tmp_path / "s", ASSEMBLED.format(directive=f'.incbin \\"{data}\\"'))
    for expected in (7, 9):
        data.write_bytes(bytes([expected]))
        assert value(source) == expected
    with pytest.raises(CompileError, match=r"does not say which files \.incbin reads"):
        value(
            write(tmp_path / "s", ASSEMBLED.format(directive='.incbin \\"data.bin\\"'), "r.cpp"),
            f"-I{tmp_path}",
        )


def test_a_header_included_by_a_macro_is_found_earlier(root: Path, tmp_path: Path) -> None:
    text = '#define NAME <a/b/c/d/value.h>\n#include NAME\nextern "C" int run() { return VALUE; }'
    source = write(tmp_path / "s", text)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        (folder / "a/b/c/d").mkdir(parents=True)
    (folders[1] / "a/b/c/d/value.h").write_text("#define VALUE 1\n")
    flags = [f"-I{folder}" for folder in folders]
    assert value(source, *flags) == 1
    (folders[0] / "a/b/c/d/value.h").write_text("#define VALUE 2\n")
    assert value(source, *flags) == 2


def test_a_header_of_the_system_that_comes_before_another_is_seen(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = [tmp_path / "local", tmp_path / "usr"]
    for folder in system:
        folder.mkdir()
    compiler = tmp_path / "c++-of-another-system"
    places = " ".join(f"-isystem {folder}" for folder in system)
    compiler.write_text(f'#!/bin/sh\nexec g++ {places} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("BRINGUP_JIT_CXX", str(compiler))
    (system[1] / "value.h").write_text("#define VALUE 1\n")
    source = write(tmp_path / "s", '#include <value.h>\nextern "C" int run() { return VALUE; }')
    assert value(source) == 1
    (system[0] / "value.h").write_text("#define VALUE 2\n")
    assert value(source) == 2


def test_a_precompiled_header_is_not_used(root: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "s", '#include "value.h"\nextern "C" int run() { return VALUE; }')
    header = tmp_path / "s" / "value.h"
    header.write_text("#define VALUE 1\n")
    command = "g++ -x c++-header -std=c++17 -O3 -fPIC -march=native"
    subprocess.run([*command.split(), header, "-o", f"{header}.gch"], check=True)
    header.write_text("#define VALUE 2\n")
    assert value(source) == 2


def test_the_time_of_a_file_is_no_part_of_a_kernel(
    root: Path, tmp_path: Path, counted: Callable[[], int]
) -> None:
    body = 'extern "C" int run() { return sizeof(__TIMESTAMP__) + __TIMESTAMP__[23]; }'
    source = write(tmp_path / "s", body)
    first = value(source)
    os.utime(str(source.path), (1, 1))
    assert value(source) == first == 25 + ord("0")
    assert counted() == 1


@pytest.mark.parametrize("names", ["__FILE__", "__builtin_FILE()"])
def test_a_kernel_that_says_its_name_has_its_own(root: Path, tmp_path: Path, names: str) -> None:
    body = f'extern "C" int run() {{ return {names}[2]; }}'
    first = write(tmp_path / "s", body, "a.cpp")
    second = write(tmp_path / "t", body, "b.cpp")
    assert (value(first), value(second)) == (ord("a"), ord("b"))


def test_a_kernel_that_says_the_name_of_its_header_has_that_of_the_folder(
    root: Path, tmp_path: Path
) -> None:
    source = write(tmp_path / "s", '#include "value.h"\nextern "C" int run() { return name[0]; }')
    header = "static const char* name = __FILE__;\n"
    (tmp_path / "s" / "value.h").write_text(header)
    assert value(source, f"-I{tmp_path / 'include'}") == ord(".")
    (tmp_path / "s" / "value.h").unlink()
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "value.h").write_text(header)
    assert value(source, f"-I{tmp_path / 'include'}") == ord("i")


def make_library(path: Path, number: int) -> None:
    code, made = path.with_suffix(".c"), path.with_suffix(".o")
    code.write_text(f"int foo(void) {{ return {number}; }}\n")
    if path.suffix == ".so":
        subprocess.run(["gcc", "-shared", "-fPIC", code, "-o", path], check=True)
    else:
        subprocess.run(["gcc", "-fPIC", "-c", code, "-o", made], check=True)
        subprocess.run(["ar", "rcD", path, made], check=True)


@pytest.mark.parametrize("better", ["first/libfoo.a", "second/libfoo.so"])
def test_a_library_that_the_linker_prefers_is_seen(root: Path, tmp_path: Path, better: str) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    make_library(tmp_path / "second/libfoo.a", 1)
    source = write(tmp_path / "s", 'extern "C" int foo(); extern "C" int run() { return foo(); }')
    flags = [f"-L{tmp_path / name}" for name in ("first", "second")]
    flags += ["-lfoo", f"-Wl,-rpath,{tmp_path / 'second'}"]
    assert value(source, *flags) == 1
    make_library(tmp_path / better, 2)
    assert value(source, *flags) == 2


def test_a_failure_that_a_probe_decides_is_tried_again(root: Path, tmp_path: Path) -> None:
    text = '#if !__has_include("opt.h")\nint broken = ;\n#endif\nextern "C" int run() { return 3; }'
    source = write(tmp_path / "s", text)
    with pytest.raises(CompileError, match="expected primary-expression"):
        jit.compile(source)
    (tmp_path / "s" / "opt.h").write_text("")
    assert value(source) == 3


def test_a_bundle_knows_what_its_kernels_were_answered(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: Callable[[], int]
) -> None:
    source = write(tmp_path / "s", PROBE.format(condition=CONDITIONS["literal"]))
    assert value(source) == 0
    jit.cache().export_bundle(tmp_path / "kernels.zip")
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "elsewhere"))
    jit.cache().import_bundle(tmp_path / "kernels.zip")
    assert value(source) == 0
    assert counted() == 1
    (tmp_path / "s" / "opt.h").write_text("")
    assert value(source) == 1
    assert counted() == 2


def test_probes_of_headers_of_the_system_name_their_files(tmp_path: Path) -> None:
    path = tmp_path / "sys.h"
    path.write_text(
        "# ifdef __has_include\n#  if __has_include (<linux/stat.h>)\n#  endif\n# endif\n"
    )
    (asked,) = probes_of([str(path)]).asked
    assert (asked[1].name, asked[1].quoted) == ("linux/stat.h", False)


def test_the_usual_fallback_for_old_compilers_is_no_probe(tmp_path: Path) -> None:
    path = tmp_path / "old.h"
    path.write_text("#ifndef __has_include\n#define __has_include(x) 0\n#endif\n")
    found = probes_of([str(path)])
    assert (found.asked, found.untracked) == ((), ())
