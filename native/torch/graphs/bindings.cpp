#include "torch/module.h"

namespace bringup::torch_ext {

void bind_graphs(nanobind::module_& module) { (void)module; }

}  // namespace bringup::torch_ext
