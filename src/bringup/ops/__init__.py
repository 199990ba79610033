"""Kernels become torch operators.

In reading order: `kernel_op` defines an operator from a kernel file and returns its callable
(`KernelOperator`). `empty_like` and `empty` say how its outputs are allocated; `same_shape`,
`same_dtype`, `shape`, `dtype` and `kernel_checks` are its input contract. Both are written once and
serve real, fake and meta tensors.
"""

from __future__ import annotations

from bringup.ops._kernel_op import KernelOperator, kernel_op
from bringup.ops._rules import (
    Check,
    OutputRule,
    dtype,
    empty,
    empty_like,
    kernel_checks,
    same_dtype,
    same_shape,
    shape,
)

__all__ = [
    "Check",
    "KernelOperator",
    "OutputRule",
    "dtype",
    "empty",
    "empty_like",
    "kernel_checks",
    "kernel_op",
    "same_dtype",
    "same_shape",
    "shape",
]
