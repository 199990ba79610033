#pragma once

#include <nanobind/nanobind.h>

namespace bringup::python {

void bind_rewriting(nanobind::module_& module);

}  // namespace bringup::python
