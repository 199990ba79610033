// What binds the parts of the engine and of the expression language for Python.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace bringup::python {

void bind_borrowed(nanobind::module_& module);
void bind_graph(nanobind::module_& module);
void bind_hosted(nanobind::module_& module);
void bind_language(nanobind::module_& module);
void bind_matching(nanobind::module_& module);
void bind_questions(nanobind::module_& module);
void bind_registry(nanobind::module_& module);
void bind_rewriting(nanobind::module_& module);
void bind_running(nanobind::module_& module);

// Why this module and the libbringup_engine.so of the process are no pair; empty: they are one.
std::string engine_mismatch();

}  // namespace bringup::python
