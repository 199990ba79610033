"""What a source shows of the function that is called as it is."""

from __future__ import annotations

import pytest

from bringup import jit
from bringup._language.c_call import parse_call
from bringup.jit.source.declaration import (
    as_declared,
    declaration_in,
    declared_in,
    functions_in,
)

SHOWN: list[tuple[str, list[tuple[str, str]]]] = [
    ("void f(void) {}", []),
    ("int f();", []),
    ("int f(float* out, const float *x, int n) {", [("", "float32"), ("", "float32"), ("i32", "")]),
    ("void f(const double x[], unsigned long long n);", [("", "float64"), ("u64", "")]),
    ("void f(double, float, size_t, bool b) {", [("f64", ""), ("f32", ""), ("u64", ""),
                                                 ("bool", "")]),
    ("static inline int f(std::int64_t n, uint8_t* bytes, char* text) noexcept {",
     [("i64", ""), ("", ""), ("", "")]),
    ("void f(half* x, T* y, my_int n, float** rows, int16_t* __restrict__ z);",
     [("", ""), ("", ""), ("", ""), ("", ""), ("", "int16")]),
    ("/* f(int) */ // f(int);\n#define G f(1);\nchar* s = \"f(2);\";\nlong* f(long a) {",
     [("i64", "")]),
    ("int g(int a) { return f(a); }\nint f(long a, long b) {", [("i64", ""), ("i64", "")]),
    ("int n = 1'000; char* r = R\"(\" int f(int);)\"; char q = '\"'; int f(long a) {",
     [("i64", "")]),
    ("#error don't f(int);\nint f(long a) {", [("i64", "")]),
    ("int f(int a);\nint f(int b) { return f(3); }", [("i32", "")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), SHOWN)
def test_parameters_are_read_as_far_as_they_show(
    text: str, expected: list[tuple[str, str]]
) -> None:
    found = declaration_in(text, "f")
    assert found is not None
    assert [(one.word, one.dtype) for one in found] == expected


@pytest.mark.parametrize(
    "text",
    [
        "int g(int a) { return a; }",
        "int f(int a); int f(float* a);",
        "template <class T> void f(std::array<T, 3> a, int n) {",
        "void f(int a, int b = 3) {",
        "int f(const char* format, ...);",
        "void f(int (*g)(int), int n) {",
        "#define DECLARE(name) int name(int a)\nDECLARE(f) { return a; }",
    ],
)
def test_what_only_a_compiler_knows_is_left_to_it(text: str) -> None:
    """Overloads, templates, defaults, macros: no guess that could refuse what is right."""
    assert declaration_in(text, "f") is None


def test_functions_of_a_source_are_named() -> None:
    text = "int one(int a) { if (a) { return two(a); } return 0; }\nvoid two(int a);"
    assert functions_in(text) == ["one", "two"]


def test_a_function_that_another_file_may_bring_is_not_refused() -> None:
    signature = [jit.Argument("n", "int")]
    parameters = parse_call("n", signature, "here")
    for text in ('#include "f.h"\nint g(int a);', "#define F(x) x##f\nint g(int a);", "int f;"):
        source = jit.Source(text=text, name="f.c", entry="f")
        assert as_declared(source, declared_in(source, "f"), parameters, "here") == parameters


@pytest.mark.parametrize(
    ("text", "known"),
    [("int g(int a);", "g"), ("#include <math.h>\nint g(int a);", "g"), ("int a;", "none")],
)
def test_function_that_is_not_there_is_refused_naming_those_that_are(text: str, known: str) -> None:
    """A system header beside functions of the file's own does not bring the entry."""
    parameters = parse_call("n", [jit.Argument("n", "int")], "here")
    source = jit.Source(text=text, name="f.c", entry="f")
    with pytest.raises(ValueError, match=rf"here: f\.c has no function 'f' \(it has {known}\)"):
        as_declared(source, declared_in(source, "f"), parameters, "here")


def test_a_large_source_is_read_to_its_end() -> None:
    """Pitfall: a pattern that backtracks would not come to an end."""
    text = "int a[] = {" + "1, (2), " * 40_000 + "};\n" + "g(int a, (((\n" * 2000
    found = declaration_in(f"{text});\nint f(long n);", "f")
    assert found is not None
    assert [one.word for one in found] == ["i64"]
