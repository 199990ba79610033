// Running passes over graphs of bringup.ir: the engine's flow, whose steps Python does.
#pragma once

#include <nanobind/nanobind.h>

namespace bringup::python {

void bind_running(nanobind::module_& module);

}  // namespace bringup::python
