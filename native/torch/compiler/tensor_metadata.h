// What fake kernels see of a tensor without data, read in one call.
#pragma once

#include <nanobind/nanobind.h>

namespace bringup::torch_ext::compiler {

// (shape, strides, storage offset, dtype, whether it requires a gradient) of a strided tensor with
// plain sizes, or None: symbolic sizes, another layout, a lazy negative or conjugate, zeros without
// memory.
nanobind::object tensor_look(nanobind::handle tensor);

}  // namespace bringup::torch_ext::compiler
