// The callable that users hold: a builtin function that goes straight to the kernel when the
// dispatcher would have come there anyway, and to torch.ops' operator in every other case.
#pragma once

#include <Python.h>

#include "torch/ops/record.h"

namespace bringup::torch_ext {

// Makes the type ready. Returns false with a Python exception set when that fails.
bool init_kernel_function_type();

// A new callable for `op`, or null with a Python exception set. `name` and `doc` must live as long
// as the process.
PyObject* make_kernel_function(const KernelOp& op, const char* name, const char* doc);

// The operator behind such a callable; raises TypeError (as python_error) for any other object.
const KernelOp& kernel_op_of(PyObject* callable);

}  // namespace bringup::torch_ext
