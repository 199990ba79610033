"""Operators for the tests of this folder: defined once a test, undefined after it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
from tests.unit.ops.support import ADD, ELEMENTWISE, MUL, MUL_BACKWARD, NOTHING

from bringup import ops

_numbers = itertools.count()


class Define(Protocol):
    """`define("f(Tensor x) -> Tensor", source=..., ...)`: `kernel_op` in a namespace of its own."""

    def __call__(self, signature: str, **options: Any) -> ops.KernelOperator: ...


@pytest.fixture
def define() -> Iterator[Define]:
    namespace = f"bringup_test_{next(_numbers)}"
    defined: list[ops.KernelOperator] = []

    def define_operator(signature: str, **options: Any) -> ops.KernelOperator:
        options.setdefault("source", NOTHING)
        operator = ops.kernel_op(f"{namespace}::{signature}", **options)
        defined.append(operator)
        return operator

    yield define_operator
    for operator in defined:
        operator.undefine()


@pytest.fixture
def custom() -> Iterator[Callable[..., ops.CustomOperator]]:
    """`custom(function, **options)`: `custom_op` under a name of its own, undefined afterwards."""
    defined: list[ops.CustomOperator] = []

    def define_custom(function: Callable[..., Any], **options: Any) -> ops.CustomOperator:
        name = f"bringup_test_custom::op{next(_numbers)}"
        defined.append(ops.custom_op(name, **options)(function))
        return defined[-1]

    yield define_custom
    for operator in defined:
        operator.undefine()


@pytest.fixture
def add(define: Define) -> ops.KernelOperator:
    """x + y, without a backward."""
    return define(
        "add(Tensor x, Tensor y) -> Tensor",
        source=ADD,
        outputs=ops.empty_like("x"),
        checks=ELEMENTWISE,
        dtypes={"T": "x"},
    )


@pytest.fixture
def mul(define: Define) -> ops.KernelOperator:
    """x * y, with a backward that has none of its own."""
    backward = define(
        "mul_backward(Tensor grad, Tensor x, Tensor y) -> (Tensor, Tensor)",
        source=MUL_BACKWARD,
        outputs=(ops.empty_like("x"), ops.empty_like("y")),
        checks=[ops.same_shape("grad", "x", "y"), ops.same_dtype("grad", "x", "y")],
        dtypes={"T": "x"},
    )
    operator = define(
        "mul(Tensor x, Tensor y) -> Tensor",
        source=MUL,
        outputs=ops.empty_like("x"),
        checks=ELEMENTWISE,
        dtypes={"T": "x"},
    )
    operator.register_backward(backward.qualified_name, save=("x", "y"))
    return operator
