"""Defining a name again: the same definition replaces, another one is refused unless asked for."""

from __future__ import annotations

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
    with pytest.raises(ExpiredHandleError, match="was removed"):
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
