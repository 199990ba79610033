// A captured graph as its parts, of which a file has what it can, and a graph made of such parts in
// another process, without running an operator.
#pragma once

#include <nanobind/nanobind.h>

#include "torch/graphs/graph.h"

namespace bringup::torch_ext::graphs {

void bind_saving(nanobind::module_& module, nanobind::class_<Graph>& graph);

}  // namespace bringup::torch_ext::graphs
