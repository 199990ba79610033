// bringup._native._torch: everything that links libtorch, built for one torch minor at a time.
#include "torch/module.h"

#include <torch/version.h>

#include <stdexcept>

#include "runtime/expression.h"

namespace {

// Expressions and enums come from the native core. Two versions of nanobind do not know each
// other's types: that is said here, not at the first definition of an operator.
void require_types_of_core() {
  const nanobind::object core = nanobind::module_::import_("bringup._native._core");
  const nanobind::object bound = core.attr("NativeExpression");  // which binds it
  if (!nanobind::type<bringup::runtime::Expression>().is_valid()) {
    throw std::runtime_error("it was built with another nanobind than the native core");
  }
}

}  // namespace

NB_MODULE(_torch, module) {
  require_types_of_core();
  // Graphs and operators may be module-level objects of a user's program, alive at the very end.
  nanobind::set_leak_warnings(false);
  module.attr("torch_version") = TORCH_VERSION;
  nanobind::module_ ops = module.def_submodule("ops");
  nanobind::module_ devices = module.def_submodule("devices");
  nanobind::module_ operators = module.def_submodule("operators");
  nanobind::module_ graphs = module.def_submodule("graphs");
  nanobind::module_ compiler = module.def_submodule("compiler");
  bringup::torch_ext::bind_ops(ops);
  bringup::torch_ext::bind_devices(devices);
  bringup::torch_ext::bind_operators(operators);
  bringup::torch_ext::bind_graphs(graphs);
  bringup::torch_ext::bind_compiler(compiler);
}
