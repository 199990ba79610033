"""Kernels of the tests: small C++ texts, each good for every dtype that its macro `T` takes."""

from __future__ import annotations

_PROLOGUE = """
static int64_t count(const DLTensor* x) {
  int64_t n = 1;
  for (int32_t i = 0; i < x->ndim; ++i) n *= x->shape[i];
  return n;
}
#define TENSOR(i) static_cast<const DLTensor*>(args[i])
#define DATA(i) static_cast<T*>(TENSOR(i)->data)
#define DOUBLE(i) (*static_cast<const double*>(args[i]))
#define INT(i) (*static_cast<const int64_t*>(args[i]))
BRINGUP_EXPORT int32_t run(void** args, int32_t n, const bringup_ctx* ctx) {
"""


def _each(statement: str) -> str:
    """A kernel that runs `statement` for every element `i` of its first argument."""
    loop = f"for (int64_t i = 0; i < count(TENSOR(0)); ++i) {{ {statement} }}"
    return f"{_PROLOGUE}{loop}\n  return 0;\n}}"


# (x, y) -> out
ADD = _each("DATA(2)[i] = DATA(0)[i] + DATA(1)[i];")
MUL = _each("DATA(2)[i] = DATA(0)[i] * DATA(1)[i];")
# (grad, x, y) -> (grad_x, grad_y)
MUL_BACKWARD = _each("DATA(3)[i] = DATA(0)[i] * DATA(2)[i]; DATA(4)[i] = DATA(0)[i] * DATA(1)[i];")
# (x, float factor) -> out
SCALE = _each("DATA(2)[i] = DATA(0)[i] * T(DOUBLE(1));")
