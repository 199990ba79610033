"""A parameter struct or an optional function that is not what the template says does not compile,
and says so in words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.unit.jit.support import run

from bringup import jit
from bringup.errors import CompileError
from bringup.jit.files.elf import symbols_of
from bringup.jit.source.param_struct import check_text

ITEMS = "ptr(out), ptr(x), stride(x,1), scale"
C_STRUCT = "struct P { bringup_params head; float* out; const float* x; %s };\n"
RIGHT = "int64_t stride; double scale;"
WRONG = {
    "swapped": ("double scale; int64_t stride;", "scale|field 3"),
    "a float": ("int64_t stride; float scale;", "float|a double"),
    "an int": ("int stride; double scale;", "int |int64_t"),
    "a pointer": ("int64_t stride; const double* scale;", "a pointer|a double"),
    "too few": ("int64_t stride;", "fields|field of 8 bytes"),
    "too many": ("int64_t stride, other; double scale;", "fields|field of 8 bytes"),
}
ENTRIES = {
    "typed": ("k.cpp", 'extern "C" int run(unsigned, void*, const P* p)', "p"),
    "void": ("k.cpp", 'extern "C" int run(unsigned, void*, const void* q)', "((const P*)q)"),
    "C": ("k.c", "int run(uint32_t b, void* s, const void* q)", "((const struct P*)q)"),
}


def template(
    members: str,
    entry: str = "typed",
    more: str = "",
    struct: str = C_STRUCT,
    items: str = ITEMS,
    result: str = "x[0] * 2",
) -> Any:
    name, head, p = ENTRIES[entry]
    text = f'#include "bringup/params.h"\n{struct % members}{more}\n{head} {{ '
    text += f"{p}->out[0] = (float)({p}->{result}); return 0; }}\n"
    return jit.Template(text=text, name=name, params=items)


def compiled(made: jit.Template) -> jit.Binary:
    return made.compile(jit.params(made, **arguments()))


def arguments() -> dict[str, Any]:
    ones = np.ones((1, 1), "float32")
    return {"x": ones, "scale": 3.0, "out": np.zeros(1, "float32")}


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_struct_of_the_right_fields_compiles(entry: str) -> None:
    given = arguments()
    run(compiled(template(RIGHT, entry)), *given.values())
    assert given["out"].tolist() == [2]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("kind", WRONG)
def test_a_struct_of_other_fields_is_refused_with_words(kind: str, entry: str) -> None:
    members, words = WRONG[kind]
    with pytest.raises((CompileError, ValueError), match=words):
        compiled(template(members, entry))


HIDDEN = "typedef double number; typedef float single;\n" + C_STRUCT
UNREADABLE = {
    "a type behind a typedef": ("int64_t stride; single scale;", "field 4 of .* a double"),
    "swapped behind a typedef": ("number scale; int64_t stride;", "field 3 of .* an int64_t"),
    "two names exchanged": ("int64_t scale; double stride;", "has scale in another place"),
    "a directive between": ("\n#if 1\ndouble scale;\n#endif\nint64_t stride;", "an int64_t"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_the_compiler_sees_what_the_text_does_not_show(kind: str) -> None:
    members, words = UNREADABLE[kind]
    struct = HIDDEN.replace("bringup_params head;", "bringup_params head; int64_t none[0];")
    made = template(members, struct=struct)
    items = jit.params(made, **arguments()).bound.items
    assert check_text(str(made.text), "run", items) == ""
    with pytest.raises(CompileError, match=words):
        compiled(made)


@pytest.mark.parametrize(
    "struct",
    [
        "struct P : bringup_params { float* out; const float* x; %s };\n",
        "struct D { int64_t n; }; struct P { bringup_params head; float* out; const float* x; D d; "
        "double scale; }; // %s\n",
        "struct P { bringup_params head; void* tensors[2]; %s };\n",
    ],
    ids=["a base", "a struct in it", "an array in it"],
)
def test_other_ways_to_write_the_struct(struct: str) -> None:
    text = f'#include "bringup/params.h"\n{struct % RIGHT}'
    text += 'extern "C" int run(unsigned, void*, const P* p) { return p->scale != 3; }'
    made = jit.Template(text=text, name="k.cpp", params=ITEMS)
    run(compiled(made), *arguments().values())


HOOKS = {
    "pointer to changeable": 'extern "C" uint64_t workspace_size(P* p) { return 64; }',
    "reference": "uint64_t workspace_size(const P& p) { return 64; }",
    "one more": 'extern "C" uint64_t workspace_size(const P* p, int more) { return 64; }',
    "none": 'extern "C" uint64_t workspace_size() { return 64; }',
    "template": "template <class Q> uint64_t workspace_size(const Q* p) { return 64; }",
    "can_implement": "const char* can_implement(P* p) { return nullptr; }",
    "by value": "const char* can_implement(P p) { return nullptr; }",
}


@pytest.mark.parametrize("kind", HOOKS)
def test_an_optional_function_of_another_form_is_refused(kind: str) -> None:
    with pytest.raises(CompileError, match=r"is defined, but not as a function that takes one"):
        compiled(template(RIGHT, more=HOOKS[kind]))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("bool can_implement(const P*) { return true; }", "does not return a const char"),
        ("double workspace_size(const P*) { return 8; }", "does not return a number of bytes"),
        ("void workspace_size(const P*) {}", "does not return a number of bytes"),
    ],
)
def test_an_optional_function_that_returns_something_else_is_refused(more: str, words: str) -> None:
    with pytest.raises(CompileError, match=words):
        compiled(template(RIGHT, more=more))


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_misspelt_optional_function_is_refused(entry: str) -> None:
    with pytest.raises(
        ValueError, match=r"defines worksapce_size, which nothing calls; the optional"
    ):
        compiled(
            template(RIGHT, entry, "unsigned long worksapce_size(const void* p) { return 1; }")
        )


def test_a_helper_of_a_similar_name_that_is_used_is_none() -> None:
    more = "static uint64_t workspace_size_(int64_t n) { return 8 * n; }\n"
    more += "uint64_t workspace_size(const P* p) { return workspace_size_(p->stride); }"
    compiled(template(RIGHT, more=more))


def test_an_unused_signature_of_c_is_refused() -> None:
    with pytest.raises(CompileError, match="conflicting types for 'workspace_size'"):
        compiled(template(RIGHT, "C", "uint64_t workspace_size(struct P* p) { return 1; }"))


SIZES = "ptr(out), ptr(x), size(x,0), size(x,1)"
NAMED = "ptr(out), ptr(x), rows=size(x,0), columns = size(x,1)"
MIXED = "out=ptr(out), ptr(x), rows=size(x, 0), stride(x,0),"


def rows_given_by(members: str, entry: str, items: str) -> float:
    """What a kernel over x [2, 3] finds in its field `rows`."""
    x, out = np.ones((2, 3), "float32"), np.zeros(1, "float32")
    made = template(members, entry, items=items, result="rows")
    run(made.compile(jit.params(made, x=x, out=out)), x, out)
    return float(out[0])


@pytest.mark.parametrize("entry", ENTRIES)
def test_fields_of_one_type_are_told_apart_by_the_names_in_params(entry: str) -> None:
    assert rows_given_by("int64_t rows, columns;", entry, NAMED) == 2
    with pytest.raises((CompileError, ValueError), match=r"rows in another place|calls it rows"):
        rows_given_by("int64_t columns, rows;", entry, NAMED)


@pytest.mark.parametrize("entry", ENTRIES)
def test_items_without_a_name_may_follow_items_with_one(entry: str) -> None:
    assert rows_given_by("int64_t rows, row_stride;", entry, MIXED) == 2
    with pytest.raises(ValueError, match="there is a member rows before"):
        rows_given_by("int64_t rows, rows;", entry, "rows=size(x,0), rows=size(x,1)")


@pytest.mark.parametrize("entry", ENTRIES)
def test_fields_of_one_type_that_params_does_not_name_are_taken_in_order(entry: str) -> None:
    """What nobody can see without a name: the kernel takes the columns for its rows."""
    assert rows_given_by("int64_t columns, rows;", entry, SIZES) == 3


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_field_that_params_names_has_to_be_there(entry: str) -> None:
    words = r"rows in another place than params=, or not at all|has n as field 3, params= calls it"
    with pytest.raises((CompileError, ValueError), match=words):
        compiled(template("int64_t n, columns;", entry, items=NAMED))


@pytest.mark.parametrize("entry", ["void", "C"])
def test_arguments_in_another_order_than_in_params_are_told_with_both_places(entry: str) -> None:
    struct = C_STRUCT.replace("float* out; const float* x;", "const float* x; float* out;")
    words = "has out as field 2, params= as 1; the order has to be the same"
    with pytest.raises((CompileError, ValueError), match=words):
        compiled(template(RIGHT, entry, struct=struct))


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_name_in_params_counts_before_that_of_an_argument(entry: str) -> None:
    items = "ptr(out), ptr(x), n=stride(x,1), x=scale"
    struct = C_STRUCT.replace("x;", "in;")
    made = template("int64_t n; double x;", entry, struct=struct, items=items, result="x")
    given = arguments()
    run(compiled(made), *given.values())
    assert given["out"].tolist() == [3]


@pytest.mark.parametrize(
    ("abi", "items", "words"),
    [
        ("params", "ptr(out), n=size(x,0), n=size(x,1)", "there is a member n before"),
        ("params", "ptr(out), n=", "cannot be read"),
        ("ascendc", "ptr(out), n=size(x,0)", "cannot be read"),
    ],
)
def test_names_in_params_that_mean_nothing_are_refused(abi: Any, items: str, words: str) -> None:
    made = jit.Template(text="", name="k.cpp", abi=abi, params=items)
    with pytest.raises(ValueError, match=words):
        jit.params(made, **arguments())


RETURNS_NULL = "{ return 0; }"
ARGS = "void** args, int32_t n, const bringup_ctx* ctx"
UNCALLED = {
    "fewer parameters": ("k.cpp", f"const char* bringup_can_implement(void** a) {RETURNS_NULL}"),
    "other types": ("k.cpp", f"const char* bringup_can_implement(int, int, int) {RETURNS_NULL}"),
    "static": ("k.cpp", f"static const char* bringup_can_implement(void* p) {RETURNS_NULL}"),
    "in C": ("k.c", f"const char* bringup_can_implement(const void* p) {RETURNS_NULL}"),
    "in a namespace": (
        "k.cpp",
        f"namespace own {{ const char* bringup_can_implement({ARGS}) {RETURNS_NULL} }}",
    ),
    "behind a macro": (
        "k.cpp",
        f"#define HOOK bringup_can_implement\nconst char* HOOK(int) {RETURNS_NULL}",
    ),
}


def plain(name: str, more: str) -> jit.Template:
    text = f'#include "bringup/kernel.h"\n{more}\n#ifdef __cplusplus\nextern "C"\n#endif\n'
    text += f"int32_t run({ARGS}) {{ (void)args; (void)n; (void)ctx; return 0; }}"
    return jit.Template(text=text, name=name, abi="args")


@pytest.mark.parametrize("kind", UNCALLED)
def test_an_optional_function_that_a_plain_source_gives_another_form_is_refused(kind: str) -> None:
    words = "defines bringup_can_implement in another form.*; with abi=.args. the optional functio"
    with pytest.raises((CompileError, ValueError), match=words):
        compiled(plain(*UNCALLED[kind]))


@pytest.mark.parametrize("name", ["can_implement", "bringup_can_implment", "Bringup_can_implement"])
def test_an_optional_function_that_nobody_calls_in_a_plain_source_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"defines {name}, which nothing calls; with abi="):
        compiled(plain("k.cpp", f"const char* {name}(const void* p) {RETURNS_NULL}"))


def test_a_function_of_a_plain_source_that_it_calls_itself_may_have_any_name() -> None:
    made = plain("k.cpp", "static bool can_implement(int n) { return n > 0; }")
    text = str(made.text).replace("(void)n;", "if (!can_implement(n)) return 1;")
    assert compiled(jit.Template(text=text, name="k.cpp", abi="args")).path.exists()


@pytest.mark.parametrize("suffix", ["c", "cpp"])
def test_another_result_of_the_optional_function_does_not_compile(suffix: str) -> None:
    with pytest.raises(CompileError, match=r"conflicting|ambiguating|differ only in"):
        compiled(plain(f"k.{suffix}", f"int bringup_can_implement({ARGS}) {RETURNS_NULL}"))


@pytest.mark.parametrize("suffix", ["c", "cpp"])
@pytest.mark.parametrize("args", [ARGS, ARGS.replace("** args", "* args[]")])
def test_the_right_form_is_exported_without_a_word_of_its_linkage(suffix: str, args: str) -> None:
    hook = f"const char* bringup_can_implement({args}) {RETURNS_NULL}"
    exported = symbols_of(compiled(plain(f"k.{suffix}", hook)).path)
    assert exported is not None
    assert "bringup_can_implement" in exported.exported
