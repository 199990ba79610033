// bringup._native._torch: everything that links libtorch, built for one torch minor at a time.
#include "torch/module.h"

#include <torch/version.h>

NB_MODULE(_torch, module) {
  // Graphs and operators may be module-level objects of a user's program, alive at the very end.
  nanobind::set_leak_warnings(false);
  module.attr("torch_version") = TORCH_VERSION;
  nanobind::module_ ops = module.def_submodule("ops");
  nanobind::module_ devices = module.def_submodule("devices");
  nanobind::module_ graphs = module.def_submodule("graphs");
  nanobind::module_ compiler = module.def_submodule("compiler");
  bringup::torch_ext::bind_ops(ops);
  bringup::torch_ext::bind_devices(devices);
  bringup::torch_ext::bind_graphs(graphs);
  bringup::torch_ext::bind_compiler(compiler);
}
