"""Functions as they are: what a definition cannot have is refused, by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.unit.ops.c_functions import (
    ARGS,
    CONTRACT,
    LIBRARY_ARGS,
    RMS,
    SIGNATURE,
    Build,
)
from tests.unit.ops.conftest import Define

from bringup import jit, ops
from bringup.errors import CompileError, KernelError, SchemaError

pytestmark = pytest.mark.usefixtures("simulator")


X = "f(Tensor x, int n=1) -> Tensor"
ONE = {"outputs": ops.empty_like("x")}
F = "#include <stdint.h>\nint f(float* out, const float* x, int64_t n) { return 0; }\n"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (F, {"args": "ptr(out), ptr(z), numel(x)"}, "no argument 'z' (the arguments are x, n, out)"),
    (F, {"args": "ptr(out), ptr(x), m"}, "there is no argument 'm'"),
    (F, {"args": "ptr(out), ptr(x)"},
     "f(float* out, const float* x, int64_t n) takes 3 parameters, args= has 2: ptr(out), ptr(x)"),
    (F, {"args": "ptr(out), ptr(x), x"}, "x is Tensor: write ptr(x), size(x,0), ..."),
    (F, {"args": "ptr(out), ptr(n), n"}, "n is int, which has no address to pass"),
    (F, {"args": "ptr(out), ptr(x), size(x)"}, "size names a dimension, as in size(x,0)"),
    (F, {"args": "ptr(out), ptr(x), numel(x,0)"}, "numel takes no dimension: numel(x)"),
    (F, {"args": "ptr(out), ptr(x), len(x)"}, "x is Tensor, expected int[]"),
    (F, {"args": "ptr(out), ptr(x), i32(1.5)"}, "1.5 is not a whole number"),
    (F, {"args": "ptr(out), ptr(x), f32(n)"}, "n is not a float"),
    (F, {"args": "ptr(out), ptr(x), n / 2"}, "whole numbers are combined with + - * // and %"),
    (F, {"args": "ptr(out), ptr(x), n + 'a'"}, "'a' is no whole number"),
    (F, {"args": "ptr(out), ptr(x), ptr(x) + 1"}, "ptr(x) is no whole number"),
    (F, {"args": "ptr(out), ptr(x), workspace()"}, "workspace() takes one argument"),
    (F, {"args": "ptr(out), ptr(x), ref(ptr(x))"}, "ref() is of a number"),
    (F, {"args": "ptr(out), ptr(x), i32(ref(n))"}, "ref() stands around the whole parameter"),
    (F, {"args": "ptr(out), ptr(x, single), n"}, "single is no dtype that a kernel takes (float64"),
    (F, {"args": "ptr(out), ptr(x), 1 << 3"}, "whole numbers are combined with + - * // and %"),
    (F, {"args": f"ptr(out), ptr(x), {2**70}"}, "is not an integer of 64 bits"),
    (F, {"args": "ptr(out), ptr(x), n" + " - (n" * 20 + ")" * 20}, "nested deeper than 16"),
    (F, {"args": "ptr(out), ptr(x), n; exit"}, "cannot be read"),
    (F, {"args": "ptr(out), ptr(x), n=3"}, "cannot be read"),
    (F, {"args": "ptr(out), ptr(x), 'a\\0b'"}, "ends at its first NUL"),
    (F, {"args": ""}, "say what the function gets"),
    (F, {"args": 3}, "args=3: expected a text, got int"),
    (F, {"entry": "g", "args": "ptr(out)"}, "has no function 'g' (it has f); name it with entry="),
    (F, {"returns": "void", "args": "ptr(out), ptr(x), n"},
     "is for functions of a library; a source says itself"),
    (F, {"returns": "void"}, "is for a function with args="),
    (F, {"args": "ptr(out, float64), ptr(x), n"},
     "f(): ptr(out, float64) is an address, and the function has 'float* out' there: its elements "
     "are double"),
    (F, {"args": "ptr(out), ptr(x), 1.5"},
     "f(): 1.5 is a float, and the function has 'int64_t n' there, a whole number"),
    (F, {"args": "ptr(out), n, ptr(x)"},
     "n is a whole number, and the function has 'const float* x' there, an address"),
    (F, {"args": "ptr(out), ptr(x), ptr(x)"},
     "ptr(x) is an address, and the function has 'int64_t n' there, a number"),
    (F.replace("const float*", "float*"), {"args": "ptr(out), ptr(x), n"},
     "ptr(x) is not written by the operator, and the function may write through 'float* x'"),
    (F, {"args": "ptr(x), ptr(out), n"}, "f(): ptr(x) is not written by the operator"),
    (F.replace("float* out", "const float* out"), {"args": "ptr(out), ptr(x), n"},
     "f(): ptr(out) is written by the operator, and 'const float* out' is const"),
    (F, {"args": "ptr(out), ptr(x), const(n)"}, "const() is of an address"),
    (F, {"args": "ptr(out), ptr(x), i32(const(ptr(x)))"}, "const() stands around the whole"),
    (F, {"args": "ptr(out), ptr(x), n", "outputs": ops.empty(2, dtype=torch.int32)},
     "output out is allocated as torch.int32, and the function takes torch.float32"),
    (F, {"args": "ptr(out), ptr(x), n", "outputs": ops.empty(2, dtype=ops.promote("x", "n"))},
     "allocated as what arguments are promoted to, and the function takes torch.float32"),
    (F.replace("const float*", "const void*"),
     {"args": "ptr(out), ptr(x), n", "outputs": ops.empty(2, dtype=torch.float32)},
     "passes the address of x, and nothing says which dtype the function takes there: write "
     "ptr(x, float32)"),
]  # fmt: skip


@pytest.mark.parametrize("suffix", [".c", ".cpp"])
@pytest.mark.parametrize(
    ("declared", "item"),
    [
        ("int64_t n", "eps"),
        ("bool n", "eps"),
        ("unsigned n", "f32(eps)"),
        ("named n", "eps"),
        ("enum color n", "eps"),
        ("const int32_t* n", "ptr(many)"),
        ("const int* n", "ref(eps)"),
        ("const double* n", "ptr(many)"),
        ("float n", "name"),
    ],
)
def test_a_parameter_that_would_hold_something_else_is_refused(
    define: Define, declared: str, item: str, suffix: str
) -> None:
    """C converts without a word: the operator would compute with another number."""
    text = (
        "#include <stdint.h>\n#include <stdbool.h>\ntypedef int named;\nenum color { red };\n"
        f"int f(float* out, const float* x, {declared}) {{ return 0; }}\n"
    )
    with pytest.raises(SchemaError, match=r"f\(\): .* and the function has '.* n' there"):
        define(
            "f(Tensor x, float eps=1e-6, int[] many=[], str name='') -> Tensor",
            source=jit.Source(text=text, name=f"f{suffix}"),
            entry="f",
            args=f"ptr(out), ptr(x), {item}",
            **ONE,
        )


FAR = """#include <stdint.h>
#include <far.h>
int f(float* out, const float* x, far n) { *out = (float)n; return 0; }
"""


@pytest.mark.parametrize("suffix", [".c", ".cpp"])
def test_a_type_that_only_the_compiler_knows_is_held_against_what_is_passed(
    define: Define, tmp_path: Any, suffix: str
) -> None:
    (tmp_path / "far.h").write_text("typedef int far;\n")
    options: dict[str, Any] = {
        "source": jit.Source(text=FAR, name=f"f{suffix}"),
        "entry": "f",
        "flags": [f"-I{tmp_path}"],
        **ONE,
    }
    operator = define(X, args="ptr(out), ptr(x), n", **options)
    assert operator(torch.ones(1), n=7).tolist() == [7]
    with pytest.raises(KernelError, match="n is 4294967299, which the function's type does not"):
        operator(torch.ones(1), n=2**32 + 3)
    real = define("g(Tensor x, float n=1.0) -> Tensor", args="ptr(out), ptr(x), n", **options)
    with pytest.raises(CompileError, match="args=: n is passed, and the function takes far there"):
        real(torch.ones(1))


def test_const_says_that_a_function_only_reads(define: Define) -> None:
    source = jit.Source(text=F.replace("const float*", "float*"), name="f.c")
    operator = define(X, source=source, entry="f", args="ptr(out), const(ptr(x)), n", **ONE)
    assert operator(torch.ones(2)).shape == (2,)


@pytest.mark.parametrize(("text", "options", "words"), REFUSED)
def test_a_wrong_definition_is_refused_by_name(
    define: Define, text: str, options: dict[str, Any], words: str
) -> None:
    given = {**ONE, "source": jit.Source(text=text, name="f.c"), "entry": "f", **options}
    with pytest.raises(SchemaError) as failure:
        define(X, **given)
    assert words in str(failure.value)
    assert "::f: " in str(failure.value)


DTYPES_TOLD: list[dict[str, Any]] = [
    {"checks": ops.dtype("x", torch.float32, torch.float64)},
    {"args": "ptr(out), ptr(x, int16), n"},
    {"args": "ptr(out), ptr(x), dtype(x)"},
    {"args": "ptr(out), ptr(x), dtype_bits(x)"},
    {"checks": ops.kernel_checks()},
]


@pytest.mark.parametrize("options", DTYPES_TOLD)
def test_each_way_to_say_the_dtype_of_an_address_will_do(
    define: Define, options: dict[str, Any]
) -> None:
    text = F.replace("const float*", "const void*").replace("float*", "void*")
    source = jit.Source(text=text, name="f.c")
    given = {**ONE, "args": "ptr(out), ptr(x), n", **options}
    dtype = torch.int16 if "int16" in given["args"] else torch.float32
    assert define(X, source=source, entry="f", **given)(torch.ones(2, dtype=dtype)).shape == (2,)


def test_what_the_compiler_finds_is_shown_with_the_function(define: Define) -> None:
    """Where the text does not show the declaration, the compiler knows it."""
    hidden = '#define NAME f\nextern "C" int NAME(const float* x, long n) { return 0; }\n'
    source = jit.Source(text=hidden, name="hidden.cpp")
    options: dict[str, Any] = {"source": source, "entry": "f", **ONE}
    operator = define(X, args="ptr(x, float32), n, n", **options)
    with pytest.raises(CompileError, match="too many arguments to function"):
        operator(torch.ones(1))


def test_a_library_without_the_function_names_what_is_near(define: Define, build: Build) -> None:
    options = {"args": LIBRARY_ARGS, **CONTRACT}
    library = build(RMS.replace("int rms(", "int rms_norm_f32("))
    with pytest.raises(SchemaError, match="exports no function 'rms'; did you mean 'rms_norm_f32'"):
        define(SIGNATURE, source=library, **options)
    other = build("int one(void) { return 1; }\nint two(void) { return 2; }\n")
    with pytest.raises(SchemaError, match=r"no function 'rms'; it exports .*one, two"):
        define(SIGNATURE, source=other, **options)
    mangled = build(RMS.replace('extern "C"', ""), suffix=".cpp")
    with pytest.raises(SchemaError, match=r"but C\+\+'s '_Z3rms.*declare the function extern"):
        define(SIGNATURE, source=mangled, **options)
    variable = build("int rms = 3;\n")
    with pytest.raises(SchemaError, match="exports 'rms' as a variable, not as a function"):
        define(SIGNATURE, source=variable, **options)
    text = library.with_name("libtext.so")
    text.write_text("no library")
    with pytest.raises(SchemaError, match="is no shared library"):
        define(SIGNATURE, source=text, **options)
    with pytest.raises(FileNotFoundError, match=r"no source file 'libnowhere\.so'"):
        define(SIGNATURE, source="libnowhere.so", **options)


LIBRARY_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"dtypes": {"T": "x"}}, "is built already: macros and flags cannot change it"),
    ({"macros": {"N": 1}}, "is built already"),
    ({"flags": ["-O3"]}, "is built already"),
    ({"kind": "device"}, "a library is a host entry"),
    ({"returns": "int"}, "expected 'status' or 'void'"),
    ({"args": ARGS}, "nothing says which dtype the function takes there"),
]


@pytest.mark.parametrize(("options", "words"), LIBRARY_REFUSED)
def test_what_a_library_cannot_have_is_refused(
    define: Define, build: Build, options: dict[str, Any], words: str
) -> None:
    given = {"args": LIBRARY_ARGS, **CONTRACT, **options}
    with pytest.raises(SchemaError, match=words):
        define(SIGNATURE, source=build(RMS), **given)


def _returning(kind: str, name: str) -> jit.Source:
    text = f"{kind} f(float* out, const float* x) {{ *out = 2 * *x; return 0; }}"
    text = f'extern "C" {text}' if name == "f.cpp" else text
    return jit.Source(text=text, name=name, entry="f")


@pytest.mark.parametrize("name", ["f.c", "f.cpp"])
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("float", "floating-point number"),
        ("double", "floating-point number"),
        ("long double", "floating-point number"),
        ("float*", "pointer"),
        ("const char*", "pointer"),
    ],
)
def test_what_is_no_status_is_refused_by_the_compiler(
    define: Define, name: str, kind: str, what: str
) -> None:
    """0.5 would be a success, 3.5 a failure with status 3, an address either, by chance."""
    operator = define(
        "one(Tensor x) -> Tensor",
        source=_returning(kind, name),
        args="ptr(out), ptr(x)",
        outputs=ops.empty_like("x"),
    )
    with pytest.raises(CompileError, match=f"returns a {what}, which is no status"):
        operator(torch.ones(1))


@pytest.mark.parametrize("name", ["f.c", "f.cpp"])
@pytest.mark.parametrize("kind", ["int", "unsigned char", "long long", "_Bool"])
def test_every_integer_is_a_status(define: Define, name: str, kind: str) -> None:
    kind = "bool" if (kind, name) == ("_Bool", "f.cpp") else kind
    operator = define(
        "one(Tensor x) -> Tensor",
        source=_returning(kind, name),
        args="ptr(out), ptr(x)",
        outputs=ops.empty_like("x"),
    )
    assert operator(torch.ones(1)).tolist() == [2]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ("size(x, 9999999999)", "there is no dimension 9999999999"),
        ("+".join(["1"] * 500), "nested too deeply|nested deeper"),
    ],
    ids=["dimension", "sum"],
)
def test_args_beyond_what_can_be_read_are_refused_by_name(
    define: Define, build: Build, args: str, told: str
) -> None:
    library = build("int f(long n) { return 0; }")
    with pytest.raises(SchemaError, match=told):
        define(
            "one(Tensor x) -> Tensor",
            source=library,
            entry="f",
            args=args,
            outputs=ops.empty_like("x"),
        )
