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
from bringup.jit._struct import check_text

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


def template(members: str, entry: str = "typed", more: str = "", struct: str = C_STRUCT) -> Any:
    name, head, p = ENTRIES[entry]
    text = f'#include "bringup/params.h"\n{struct % members}{more}\n{head} {{ '
    text += f"{p}->out[0] = (float)({p}->x[0] * 2); return 0; }}\n"
    return jit.Template(text=text, name=name, params=ITEMS)


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
        ValueError, match=r"defines worksapce_size, which nobody calls; the optional"
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
