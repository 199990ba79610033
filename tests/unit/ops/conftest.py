"""Operators for the tests of this folder: defined once a test, undefined after it."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.unit.ops.c_functions import Build
from tests.unit.ops.support import ADD, ELEMENTWISE, MUL, MUL_BACKWARD, NOTHING, each

from bringup import devices, jit, ops

_numbers = itertools.count()


@pytest.fixture(scope="session")
def simulator() -> devices.DriverInfo:
    """The simulated NPU."""
    return devices.load_driver("sim")


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


def _elementwise(define: Define, name: str, source: jit.Source) -> ops.KernelOperator:
    return define(
        f"{name}(Tensor x, Tensor y) -> Tensor",
        source=source,
        outputs=ops.empty_like("x"),
        checks=ELEMENTWISE,
        dtypes={"T": "x"},
    )


@pytest.fixture
def add(define: Define) -> ops.KernelOperator:
    """x + y, without a backward."""
    return _elementwise(define, "add", ADD)


@pytest.fixture
def product(define: Define) -> ops.KernelOperator:
    """x * y, without a backward."""
    return _elementwise(define, "mul", MUL)


@pytest.fixture
def mul(define: Define, product: ops.KernelOperator) -> ops.KernelOperator:
    """x * y, with a backward that has none of its own."""
    backward = define(
        "mul_backward(Tensor grad, Tensor x, Tensor y) -> (Tensor, Tensor)",
        source=MUL_BACKWARD,
        outputs=(ops.empty_like("x"), ops.empty_like("y")),
        checks=[ops.same_shape("grad", "x", "y"), ops.same_dtype("grad", "x", "y")],
        dtypes={"T": "x"},
    )
    product.register_backward(backward.qualified_name, save=("x", "y"))
    return product


@pytest.fixture
def pair(define: Define) -> ops.KernelOperator:
    """(2 * x, 3 * x), without a backward."""
    return define(
        "pair(Tensor x) -> (Tensor, Tensor)",
        source=each("DATA(1)[i] = 2 * DATA(0)[i]; DATA(2)[i] = 3 * DATA(0)[i];"),
        outputs=(ops.empty_like("x"), ops.empty_like("x")),
        dtypes={"T": "x"},
    )


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """`build(text)`: a library that plain `cc` has made, of no header and no tool of ours."""
    numbers = itertools.count()

    def compile_library(text: str, name: str = "", suffix: str = ".c") -> Path:
        source = tmp_path / f"library{next(numbers)}{suffix}"
        source.write_text(text)
        library = tmp_path / (name or f"lib{source.stem}.so")
        compiler = "cc" if suffix == ".c" else "c++"
        command = [compiler, "-O1", "-shared", "-fPIC", f"-o{library}", str(source), "-lm"]
        subprocess.run(command, check=True)
        return library

    return compile_library
