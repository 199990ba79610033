"""What `kernel_op` and `register_backward` refuse, by type and text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import ELEMENTWISE, NOTHING

from bringup import jit, ops
from bringup._native import torch_library
from bringup.errors import ExpiredHandleError, SchemaError
from bringup.ops.schema.defaults import DTYPES

ONE = {"outputs": ops.empty_like("x")}
BINARY = {**ONE, "checks": ELEMENTWISE}

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("f(Tensor x) - Tensor", ONE, "is not a schema"),
    ("f(Tensor x, float32 eps=1e-6) -> Tensor", ONE, "unexpected type at '1e-6"),
    ("größe(Tensor x) -> Tensor", ONE, "names are made of ASCII letters"),
    ("f(Tensor x, int x) -> Tensor", ONE, "two arguments are called 'x'"),
    ("f(Tensor x, ...) -> Tensor", ONE, r"'...' is not supported; name every argument"),
    ("f(Tensor x, MemoryFormat m=channels_last) -> Tensor", ONE,
     r"invalid numeric default value at '\) -> Tensor'"),
    ("f(Tensor x) -> Tensor", {"outputs": None}, "outputs=None: expected rules such as"),
    ("f(Tensor x) -> Tensor", {**ONE, "checks": None}, "checks=None: expected checks such as"),
    ("f(Tensor x, str[] l) -> Tensor", ONE, r"argument 'l' has type List\[str\]"),
    ("f(int n) -> Tensor", {"outputs": ops.empty("n")}, "needs at least one Tensor argument"),
    ("f(Tensor? x) -> Tensor", {"outputs": ops.empty(1)}, "needs at least one Tensor argument"),
    ("f(Tensor x) -> str", {}, "returns tensors, int, float and bool, got a return of type str"),
    ("f(Tensor x) -> int", ONE, "0 returns are allocated by the operator, but outputs= has 1"),
    ("f(Tensor x) -> ()", {}, "returns nothing and writes no argument"),
    ("f(Tensor(a) x) -> Tensor(a)", {}, "argument 'x' is aliased without being written"),
    ("f(Tensor(a!) x) -> (Tensor(a!), Tensor)", ONE, "must be all new tensors or all written"),
    ("f(Tensor x, Tensor y) -> Tensor", ONE, r"checks= is required .* \(x, y\)"),
    ("f(Tensor x) -> Tensor", {}, "1 returns are allocated by the operator, but outputs= has 0"),
    ("f(Tensor x) -> Tensor", {"outputs": ["x"]}, "expected rules such as ops.empty_like"),
    ("f(Tensor x) -> Tensor", {**ONE, "checks": "no"}, "expected checks such as ops.same_shape"),
    ("f(Tensor x) -> Tensor", {"outputs": ops.empty_like("z")}, "no tensor argument 'z'"),
    ("f(Tensor x, Tensor? y) -> Tensor", {"outputs": ops.empty_like("y"), "checks": ELEMENTWISE},
     "'y' may be None"),
    ("f(Tensor x) -> Tensor", {"outputs": ops.empty("n")}, "there is no argument 'n'"),
    ("f(Tensor x) -> Tensor", {"outputs": ops.empty("x.shape[0] **2")}, r"combined with \+ - \*"),
    ("f(Tensor x) -> Tensor", {"outputs": ops.empty("x.shape[")}, "cannot be read"),
    ("f(Tensor x, float e) -> Tensor", {"outputs": ops.empty("e")}, "e is float, expected int"),
    ("f(Tensor x) -> Tensor", {"outputs": ops.empty("*x.shape[::2]")}, "has no step"),
    ("f(Tensor x) -> Tensor", {"outputs": ops.empty(2, dtype=3)}, "expected a torch.dtype"),
    ("f(Tensor x) -> Tensor", {**ONE, "dtypes": {"T": "y"}}, "expected the name of an argument"),
    ("f(Tensor x) -> Tensor", {**ONE, "dtypes": dict.fromkeys("ABCDEFGHIJKLMNO", "x")},
     "::f: what chooses the binary takes 105 bits, at most 97 are there"),
    ("f(Tensor x) -> Tensor", {**ONE, "layout": "dense"}, "expected 'contiguous' or 'strided'"),
    ("f(Tensor x) -> Tensor", {**ONE, "grid": "x.size"}, "grid: 'x.size': 'x.size' is not known"),
    ("f(Tensor x) -> Tensor", {**ONE, "source": jit.Source(text="", abi="params")},
     "a kernel operator calls abi='args'"),
    ("f(Tensor x) -> Tensor", {**ONE, "source": 3},
     "::f: source=3: expected the path of a kernel file or a jit.Source, got int"),
    ("f(Tensor x) -> Tensor", {"outputs": ops.empty("1 + (" * 16 + "1" + ")" * 16)},
     "is nested deeper than 16 levels"),
    ("f(Tensor x) -> Tensor", {"outputs": ops.empty("(x + 1).numel()")},
     r"'\(x \+ 1\).numel\(\)': 'x \+ 1' is not an argument; an expression is made of integers"),
    ("f(Tensor(a!) x) -> Tensor(b!)", {}, "::f: a return aliases no argument"),
]  # fmt: skip


@pytest.mark.parametrize(("signature", "options", "text"), REFUSED)
def test_a_wrong_definition_is_refused_by_name(
    define: Define, signature: str, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(SchemaError, match=text):
        define(signature, **options)


def test_a_schema_without_namespace_is_refused() -> None:
    with pytest.raises(SchemaError, match="has no namespace: write 'mylib::f"):
        ops.kernel_op("f(Tensor x) -> Tensor", source=NOTHING, outputs=ops.empty_like("x"))


@pytest.mark.parametrize("schema", [None, 3, b"a::f(Tensor x) -> ()"])
def test_a_schema_that_is_no_text_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaError) as failure:
        ops.kernel_op(schema, source=NOTHING)
    assert str(failure.value) == (
        "a kernel operator's schema is a text such as 'mylib::f(Tensor x) -> Tensor', got "
        f"{schema!r}"
    )


def test_too_many_arguments_are_refused(define: Define) -> None:
    many = ", ".join(f"int n{i}" for i in range(63))
    with pytest.raises(SchemaError, match="64 arguments and 1 outputs are more than the 64"):
        define(f"f(Tensor x, {many}) -> Tensor", **ONE)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            lambda: ops.same_shape("x"),
            r"ops.same_shape compares two arguments or more, got \['x'\]",
        ),
        (lambda: ops.dtype("x"), "expected one torch.dtype or more"),
    ],
)
def test_a_check_that_checks_nothing_is_refused(build: Any, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        build()


def test_a_missing_source_file_is_named_with_where_it_was_looked_for(define: Define) -> None:
    beside = Path(__file__).parents[1]
    with pytest.raises(FileNotFoundError) as failure:
        define("f(Tensor x) -> Tensor", source="nowhere.cpp", **ONE)
    assert "there is no source file 'nowhere.cpp'" in str(failure.value)
    assert str(beside / "nowhere.cpp") in str(failure.value)


def test_a_folder_that_is_searched_twice_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    with pytest.raises(FileNotFoundError) as failure:
        ops.kernel_op("a::f(Tensor x) -> Tensor", source="no.cpp", outputs=ops.empty_like("x"))
    assert str(failure.value).endswith(f"looked for {Path(__file__).parent / 'no.cpp'}")


def test_a_second_definition_says_where_the_first_is(define: Define) -> None:
    define("f(Tensor x) -> Tensor", **ONE)
    with pytest.raises(SchemaError, match=r"f is defined already, at .*conftest.py:\d+"):
        define("f(Tensor x, int n) -> Tensor", **ONE)


def test_a_name_of_somebody_elses_operator_is_refused() -> None:
    with torch.library._scoped_library("bringup_test_other", "FRAGMENT") as library:
        library.define("f(Tensor x) -> Tensor")
        with pytest.raises(SchemaError, match="f is defined already, by other code"):
            ops.kernel_op("bringup_test_other::f(Tensor x) -> Tensor", source=NOTHING, **ONE)


def test_undefine_frees_the_name_and_expires_the_callable(add: ops.KernelOperator) -> None:
    again = f"{add.qualified_name}(Tensor x) -> Tensor"
    add.undefine()
    with pytest.raises(ExpiredHandleError, match=r"::add was removed by undefine\(\)"):
        add(torch.ones(2), torch.ones(2))
    ops.kernel_op(again, source=NOTHING, **ONE).undefine()


def test_the_callable_knows_its_schema_and_signature(define: Define) -> None:
    scale = define("scale(Tensor x, int n=2, *, float factor=1.5) -> Tensor", **ONE)
    assert "SymInt n=2" in scale.schema
    assert scale.__name__ == "scale"
    assert scale.__doc__ == scale.schema
    assert scale.__text_signature__ == "(x, n=2, *, factor=1.5)"
    assert repr(scale) == f"<kernel operator {scale.qualified_name}>"


@pytest.mark.parametrize(
    ("backward", "save", "text"),
    [
        ("b(Tensor grad, Tensor x) -> Tensor", ("x",), "returns 1 gradients for the 2 arguments"),
        ("b(Tensor grad, Tensor x) -> (Tensor, Tensor)", (), "reads the tensor 'x', which is not"),
        ("b(Tensor grad) -> (Tensor, Tensor)", ("x",), "save= names 'x', which it does not take"),
        ("b(Tensor grad, Tensor z) -> (Tensor, Tensor)", (), "'z' is no argument or named return"),
        ("b(Tensor grad, float n) -> (Tensor, Tensor)", (), "'n' is float, the forward operator"),
        (
            "b(int n, Tensor grad) -> (Tensor, Tensor)",
            (),
            "first 1 arguments must be the gradients",
        ),
    ],
)
def test_a_backward_that_does_not_fit_is_refused(
    define: Define, backward: str, save: tuple[str, ...], text: str
) -> None:
    forward = define("f(Tensor x, Tensor y, int n=1) -> Tensor", **BINARY)
    returns = backward.count("Tensor", backward.index("->"))
    other = define(backward, outputs=[ops.empty_like("grad")] * returns, checks=ops.kernel_checks())
    with pytest.raises(SchemaError, match=text) as failure:
        forward.register_backward(other.qualified_name, save=save)
    assert f"cannot be the backward of {forward.qualified_name}" in str(failure.value)


def test_a_backward_that_returns_no_tensor_is_refused(add: ops.KernelOperator) -> None:
    with torch.library._scoped_library("bringup_test_backward", "FRAGMENT") as library:
        library.define("count(Tensor grad) -> int")
        with pytest.raises(SchemaError, match="it must return tensors, one gradient each"):
            add.register_backward("bringup_test_backward::count")


def test_a_backward_that_is_not_defined_is_refused(add: ops.KernelOperator) -> None:
    with pytest.raises(SchemaError, match=r"there is no operator .*; define it first"):
        add.register_backward("bringup_test_none::missing")
    with pytest.raises(SchemaError, match="expected 'namespace::name'"):
        add.register_backward("missing")


def test_dtypes_are_those_of_the_library() -> None:
    """The numbers of defaults in schemas."""
    native = torch_library().ops
    assert {n: native.dtype_of_number(n) for n in DTYPES} == DTYPES
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    assert every == set(DTYPES.values())
