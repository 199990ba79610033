// The expression language for Python: its opcodes, and functions bound to what programs compute.
#pragma once

#include <nanobind/nanobind.h>

namespace bringup::python {

void bind_language(nanobind::module_& module);

}  // namespace bringup::python
