"""What runs on an NVIDIA GPU: `python -m pytest tests/cuda`. Skipped where there is none."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any, Protocol

import pytest
import torch
from tests.cuda.kernels import SCALE

from bringup import jit, ops

_numbers = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def gpu() -> torch.device:
    """The first GPU; without one or without nvcc the test is skipped."""
    if not torch.cuda.is_available():
        pytest.skip("there is no NVIDIA GPU")
    if problem := jit.toolchain("cuda").problem:
        pytest.skip(problem)
    return torch.device("cuda", 0)


class Define(Protocol):
    """`define("f(Tensor x) -> Tensor", text, ...)`: `kernel_op` of a .cu file, for one test."""

    def __call__(self, signature: str, text: str, **options: Any) -> ops.KernelOperator: ...


@pytest.fixture
def define() -> Iterator[Define]:
    namespace = f"bringup_test_cuda_{next(_numbers)}"
    defined: list[ops.KernelOperator] = []

    def define_operator(signature: str, text: str, **options: Any) -> ops.KernelOperator:
        source = options.pop("source", jit.Source(text=text, name="kernel.cu"))
        defined.append(ops.kernel_op(f"{namespace}::{signature}", source=source, **options))
        return defined[-1]

    yield define_operator
    for operator in defined:
        operator.undefine()
    gc.collect()


@pytest.fixture
def scale(define: Define) -> ops.KernelOperator:
    """`x * factor`, contiguous, for every dtype."""
    return define(
        "scale(Tensor x, float factor) -> Tensor",
        SCALE,
        outputs=ops.empty_like("x"),
        dtypes={"ELEMENT": "x"},
    )
