// Patterns, programs, matchers and the alias analysis of the engine for bringup.passes.
#pragma once

#include <nanobind/nanobind.h>

namespace bringup::python {

void bind_matching(nanobind::module_& module);

}  // namespace bringup::python
