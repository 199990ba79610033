"""Operators for the tests of this folder: defined once, from kernels that fit on a screen."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bringup import jit, ops

_numbers = itertools.count()


@pytest.fixture
def define() -> Iterator[Callable[..., ops.KernelOperator]]:
    """`define("f(Tensor x) -> Tensor", source, ...)`: an operator with a name of its own, undefined
    after the test.

    `source` is the C++ text of the kernel behind its include line.
    """
    defined: list[ops.KernelOperator] = []

    def define_operator(signature: str, text: str, **options: Any) -> ops.KernelOperator:
        name, _, rest = signature.partition("(")
        operator = ops.kernel_op(
            f"bringup_test{next(_numbers)}::{name}({rest}", source=kernel(text), **options
        )
        defined.append(operator)
        return operator

    yield define_operator
    for operator in defined:
        operator.undefine()


def kernel(text: str) -> jit.Source:
    """A kernel source of this text."""
    return jit.Source(text=f'#include "bringup/kernel.h"\n{text}', name="kernel.cpp")
