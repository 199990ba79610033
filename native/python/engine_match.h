// Patterns, programs, matchers and storages of the engine for bringup.passes.
#pragma once

#include <nanobind/nanobind.h>

namespace bringup::python {

void bind_matching(nanobind::module_& module);

}  // namespace bringup::python
