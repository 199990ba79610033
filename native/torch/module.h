// The packages of the torch module. Each binds its own functions into a submodule.
#pragma once

#include <nanobind/nanobind.h>

namespace bringup::torch_ext {

void bind_ops(nanobind::module_& module);
void bind_devices(nanobind::module_& module);
void bind_operators(nanobind::module_& module);
void bind_graphs(nanobind::module_& module);
void bind_compiler(nanobind::module_& module);

}  // namespace bringup::torch_ext
