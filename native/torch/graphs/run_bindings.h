// What `CapturedGraph.run` and compiled functions that capture themselves need of the graph.
#pragma once

#include <nanobind/nanobind.h>

#include "torch/graphs/graph.h"

namespace bringup::torch_ext::graphs {

// A call of a graph is refused while this thread captures.
void refuse_replay_in_capture();

void bind_run(nanobind::module_& module, nanobind::class_<Graph>& graph);

}  // namespace bringup::torch_ext::graphs
