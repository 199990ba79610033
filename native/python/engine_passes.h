// Passes of C and C++ libraries for bringup.passes.
#pragma once

#include <nanobind/nanobind.h>

namespace bringup::python {

void bind_passes(nanobind::module_& module);

}  // namespace bringup::python
