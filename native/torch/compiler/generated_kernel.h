// Kernels that torch.compile's code generator wrote for a device: a Python function for each, which
// takes tensors and numbers and starts it in the current stream.
#pragma once

#include <nanobind/nanobind.h>

namespace bringup::torch_ext::compiler {

// Adds `generated_kernel` to the module.
void bind_generated_kernels(nanobind::module_& module);

}  // namespace bringup::torch_ext::compiler
