"""Defining a name again: the same definition replaces, another one is refused unless asked for."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import each

from bringup import ops
from bringup.errors import ExpiredHandleError, SchemaError

ONE, TWO = each("DATA(1)[i] = DATA(0)[i] + 1;"), each("DATA(1)[i] = DATA(0)[i] + 2;")
PLUS_N = each("DATA(2)[i] = DATA(0)[i] + 1 + T(INT(1));")
OPTIONS: dict[str, Any] = {"outputs": ops.empty_like("x"), "dtypes": {"T": "x"}}


def test_a_kernel_operator_defined_again_is_replaced(define: Define) -> None:
    first = define("f(Tensor x) -> Tensor", source=ONE, **OPTIONS)
    again = define("f(Tensor x) -> Tensor", source=ONE, **OPTIONS)
    assert again(torch.zeros(1)).item() == 1
    with pytest.raises(ExpiredHandleError, match="was defined again"):
        first(torch.zeros(1))


@pytest.mark.parametrize(
    ("signature", "source"),
    [("f(Tensor x) -> Tensor", TWO), ("f(Tensor x, int n=1) -> Tensor", PLUS_N)],
)
def test_another_source_or_schema_is_refused_unless_asked_for(
    define: Define, signature: str, source: Any
) -> None:
    first = define("f(Tensor x) -> Tensor", source=ONE, **OPTIONS)
    with pytest.raises(SchemaError, match=r"is defined already, at .*redefine=True"):
        define(signature, source=source, **OPTIONS)
    assert first(torch.zeros(1)).item() == 1
    second = define(signature, source=source, redefine=True, **OPTIONS)
    assert second(torch.zeros(1)).item() == 2


PLUS_MACRO = each("DATA(1)[i] = DATA(0)[i] + N;")


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ({"macros": {"N": 1}}, {"macros": {"N": 2}}),
        ({"macros": {"N": 1}}, {"macros": {"N": True}}),
        ({"flags": ["-DN=1"]}, {"flags": ["-DN=2"]}),
        ({}, {"checks": ops.rank("x", 1)}),
        ({}, {"grid": 2}),
        ({"grid": 3}, {"grid": "x.numel()"}),
        ({}, {"strided": ["x"]}),
        ({}, {"kind": "device"}),
        ({}, {"dtypes": {"T": "out"}}),
    ],
)
def test_another_option_is_refused_unless_asked_for_and_the_same_one_is_not(
    define: Define, first: dict[str, Any], other: dict[str, Any]
) -> None:
    def again(given: dict[str, Any], **more: Any) -> Any:
        options = {"macros": {"N": 1}} if "flags" not in given else {}
        return define(
            "f(Tensor x) -> Tensor", source=PLUS_MACRO, **{**OPTIONS, **options, **given, **more}
        )

    again(first)
    kept = again(first)
    with pytest.raises(SchemaError, match=r"is defined already, at .*redefine=True"):
        again(other)
    assert kept(torch.zeros(1)).item() == 1
    again(other, redefine=True)


def test_another_file_content_is_the_same_definition(define: Define, tmp_path: Path) -> None:
    file = tmp_path / "plus.cpp"
    for text, expected in ((ONE.text, 1), (TWO.text, 2)):
        file.write_text(text)
        operator = define("f(Tensor x) -> Tensor", source=file, **OPTIONS)
        assert operator(torch.zeros(1)).item() == expected


def test_a_function_defined_again_is_replaced_and_another_one_only_if_asked() -> None:
    def make() -> Any:
        def function(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        return function

    name = "bringup_test_redefined::f"
    first = ops.custom_op(name, make())
    second = ops.custom_op(name, make())
    with pytest.raises(ExpiredHandleError):
        first(torch.zeros(1))

    def other(x: torch.Tensor) -> torch.Tensor:
        return x + 2

    with pytest.raises(SchemaError, match=r"is defined already, at .*redefine=True"):
        ops.custom_op(name, other)
    assert second(torch.zeros(1)).item() == 1
    third = ops.custom_op(name, other, redefine=True)
    assert third(torch.zeros(1)).item() == 2
    third.undefine()


def _plus(amount: int, x: torch.Tensor) -> torch.Tensor:
    return x + amount


@pytest.fixture
def plus_one() -> Iterator[ops.CustomOperator]:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    operator = ops.custom_op("bringup_test_redefined::kept", function)
    operator.register_fake(torch.empty_like)
    yield operator
    operator.undefine()


class _Unmade(ops.CustomOperator):
    def __init__(self, *args: Any) -> None:
        raise ValueError("not made")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tags": ("nope",)}, TypeError),
        ({"make": _Unmade}, ValueError),
        ({"device_types": "cpu", "schema": "(int n) -> int"}, SchemaError),
    ],
)
def test_a_redefinition_that_fails_leaves_the_earlier_operator(
    plus_one: ops.CustomOperator, options: dict[str, Any], error: type[Exception]
) -> None:
    def other(x: torch.Tensor) -> torch.Tensor:
        return x + 2

    with pytest.raises(error):
        ops.custom_op(plus_one.qualified_name, other, redefine=True, **options)
    assert plus_one(torch.zeros(1)).item() == 1
    assert torch.ops.bringup_test_redefined.kept(torch.zeros(1)).item() == 1
    assert torch.ops.bringup_test_redefined.kept(torch.zeros(1, device="meta")).shape == (1,)
    assert not hasattr(torch.ops.bringup_test_redefined, "kept_redefined")
    ops.custom_op(plus_one.qualified_name, other, redefine=True)
    assert torch.ops.bringup_test_redefined.kept(torch.zeros(1)).item() == 2
    ops.custom_op(plus_one.qualified_name, other, redefine=True).undefine()


WRITES: dict[str, Any] = {
    "source": each("DATA(0)[i] += 2;"), "outputs": (), "checks": ops.kernel_checks(),
    "dtypes": {"T": "x"}, "redefine": True,
}  # fmt: skip


def test_a_second_name_that_is_taken_leaves_the_earlier_kernel_operator(define: Define) -> None:
    first = define("f(Tensor x) -> Tensor", source=ONE, **OPTIONS)
    namespace = first.qualified_name.partition("::")[0]
    library = torch.library.Library(namespace, "FRAGMENT")
    library.define("f_without_returns(Tensor x) -> ()")
    with pytest.raises(SchemaError, match=r"f returns what it writes.*other code"):
        define("f(Tensor(a!) x) -> Tensor(a!)", **WRITES)
    assert first(torch.zeros(1)).item() == 1
    assert getattr(torch.ops, namespace).f(torch.zeros(1)).item() == 1
    library._destroy()
    second = define("f(Tensor(a!) x) -> Tensor(a!)", **WRITES)
    third = define("f(Tensor(a!) x) -> Tensor(a!)", **WRITES)
    assert third(torch.zeros(1)).item() == 2
    with pytest.raises(ExpiredHandleError):
        second(torch.zeros(1))


def test_a_second_name_that_is_taken_leaves_the_earlier_function(
    plus_one: ops.CustomOperator,
) -> None:
    library = torch.library.Library("bringup_test_redefined", "FRAGMENT")
    library.define("kept_without_returns(Tensor x) -> ()")
    with pytest.raises(SchemaError, match=r"kept returns what it writes.*other code"):
        ops.custom_op(
            plus_one.qualified_name,
            lambda x: x.add_(2),
            schema="(Tensor(a!) x) -> Tensor(a!)",
            mutates_args=("x",),
            redefine=True,
        )
    library._destroy()
    assert plus_one(torch.zeros(1)).item() == 1


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (functools.partial(_plus, 1), functools.partial(_plus, 2)),
        (lambda x: x + 1, lambda x: x + 2),
    ],
)
def test_what_has_no_name_of_its_own_does_not_replace_another(earlier: Any, later: Any) -> None:
    name, schema = "bringup_test_redefined::nameless", "(Tensor x) -> Tensor"
    first = ops.custom_op(name, earlier, schema=schema)
    with pytest.raises(SchemaError, match="is defined already"):
        ops.custom_op(name, later, schema=schema)
    assert first(torch.zeros(1)).item() == 1
    ops.custom_op(name, earlier, schema=schema)
    second = ops.custom_op(name, later, schema=schema, redefine=True)
    assert second(torch.zeros(1)).item() == 2
    second.undefine()
