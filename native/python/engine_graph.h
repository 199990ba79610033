// The graph of the engine for bringup.ir.
#pragma once

#include <nanobind/nanobind.h>

namespace bringup::python {

void bind_graph(nanobind::module_& module);

}  // namespace bringup::python
