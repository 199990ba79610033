// Passes in Python on graphs of C++ programs: the graph itself is lent to Python for one session.
#pragma once

#include <nanobind/nanobind.h>

namespace bringup::python {

void bind_hosted(nanobind::module_& module);

// Why this module and the libbringup_engine.so of the process are no pair; empty: they are one.
std::string engine_mismatch();

}  // namespace bringup::python
