"""Kernels of the tests: small C++ texts, each good for every dtype that its macro `T` takes."""

from __future__ import annotations

from bringup import jit, ops
from bringup._native import torch_library

_PROLOGUE = """
#include "bringup/kernel.h"
static int64_t count(const DLTensor* x) {
  int64_t n = 1;
  for (int32_t i = 0; i < x->ndim; ++i) n *= x->shape[i];
  return n;
}
#define TENSOR(i) static_cast<const DLTensor*>(args[i])
#define DATA(i) static_cast<T*>(TENSOR(i)->data)
#define DOUBLE(i) (*static_cast<const double*>(args[i]))
#define INT(i) (*static_cast<const int64_t*>(args[i]))
#define LIST(i) static_cast<const bringup_list*>(args[i])
BRINGUP_EXPORT int32_t run(void** args, int32_t n, const bringup_ctx* ctx) {
"""


def kernel(statements: str) -> jit.Source:
    """A kernel with this body."""
    return jit.Source(text=f"{_PROLOGUE}  {statements}\n  return 0;\n}}\n", name="kernel.cpp")


def each(statement: str) -> jit.Source:
    """A kernel that runs `statement` for every element `i` of its first argument."""
    return kernel(f"for (int64_t i = 0; i < count(TENSOR(0)); ++i) {{ {statement} }}")


NOTHING = kernel("")
ADD = each("DATA(2)[i] = DATA(0)[i] + DATA(1)[i];")  # (x, y) -> out
MUL = each("DATA(2)[i] = DATA(0)[i] * DATA(1)[i];")
# (grad, x, y) -> (grad_x, grad_y)
MUL_BACKWARD = each("DATA(3)[i] = DATA(0)[i] * DATA(2)[i]; DATA(4)[i] = DATA(0)[i] * DATA(1)[i];")
SCALE = each("DATA(2)[i] = DATA(0)[i] * T(DOUBLE(1));")  # (x, float factor) -> out
ADD_INPLACE = each("DATA(0)[i] = DATA(0)[i] + DATA(1)[i];")  # (written x, y)

ELEMENTWISE = [ops.same_shape("x", "y"), ops.same_dtype("x", "y")]


def variant_count(operator: ops.KernelOperator) -> int:
    """How many binaries the operator has loaded."""
    return int(torch_library().ops.variant_count(operator))
