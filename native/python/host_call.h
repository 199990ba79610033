// Kernels called from Python on the host, for processes without the library that links libtorch.
#pragma once

#include <nanobind/nanobind.h>

namespace bringup::python {

void bind_host_call(nanobind::module_& module);

}  // namespace bringup::python
