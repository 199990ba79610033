#include "torch/module.h"

namespace bringup::torch_ext {

void bind_devices(nanobind::module_& module) { (void)module; }

}  // namespace bringup::torch_ext
