#include "torch/module.h"

namespace bringup::torch_ext {

void bind_ops(nanobind::module_& module) { (void)module; }

}  // namespace bringup::torch_ext
