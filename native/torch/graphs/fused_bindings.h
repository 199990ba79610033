// What the writer of level 2 needs of a graph.
#pragma once

#include <nanobind/nanobind.h>

#include "torch/graphs/graph.h"

namespace bringup::torch_ext::graphs {

void bind_fusing(nanobind::module_& module, nanobind::class_<Graph>& graph);

}  // namespace bringup::torch_ext::graphs
