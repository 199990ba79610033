// Binds Watch and FrozenWeights.
#pragma once

#include <nanobind/nanobind.h>

namespace bringup::torch_ext::graphs {

void bind_watch(nanobind::module_& module);

}  // namespace bringup::torch_ext::graphs
