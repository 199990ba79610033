// Which level of a replay runs a graph's nodes, and the switch to another one.
#include <algorithm>
#include <utility>

#include "torch/graphs/event_node.h"
#include "torch/graphs/graph.h"

namespace bringup::torch_ext::graphs {

FusedRuns::Arguments Graph::arguments() {
  const std::lock_guard boundary(mutex_);
  FusedRuns::Arguments all;
  const auto lock = values_.lock();  // a launch of a device takes new ones
  for (const auto& node : nodes_) all.push_back(node->arguments().vec());
  return all;
}

// The graph of lower levels stays: a launch of it may be under way, and updates may bring it back.
void Graph::fuse(std::shared_ptr<FusedRuns> fused, std::vector<DeviceRuns::Run> runs) {
  if (!runs.empty() && device_graph_->work()->devices().size() == 1) {
    const auto index = device_graph_->device();
    auto loaded = std::make_shared<DeviceRuns>(index, nodes_, std::move(runs));
    const std::lock_guard boundary(mutex_);
    auto made = std::make_unique<DeviceGraph>(*device_graph_, std::move(loaded));
    const std::lock_guard lock(fused_mutex_);
    fused_graph_ = std::move(made);
  }
  fuse(std::move(fused), "");
}

std::pair<int, std::string> Graph::level(size_t node) const {
  const auto [fused, why_not] = fused_.given();
  if (fused != nullptr && fused->runs(node)) return {2, ""};
  const std::lock_guard lock(fused_mutex_);
  const Node& own = *nodes_.at(node);
  const bool is_fused = fused_graph_ != nullptr && fused_graph_->is_fused(node);
  if (is_fused && fused_graph_->fits()) return {2, ""};
  std::string reason = own.why_no_higher();
  if (is_fused) {
    reason = kOtherArguments;
  } else if (replay_.level == 2 && (own.level() == 1 || own.runs_on_device()) && !own.is_eager()) {
    reason = fused == nullptr ? why_not : fused->why_not(node);
  }
  return {own.level(), std::move(reason)};
}

// Whether the next launch of generated kernels is one that BRINGUP_GRAPH_VERIFY compares, for which
// this thread waits: not where a node waits for an event, which this thread may record later.
bool Graph::compares_kernels() {
  if (replay_.verify == 0 || fused_launches_++ % replay_.verify != 0) return false;
  return std::ranges::none_of(
      nodes_, [](const auto& node) { return dynamic_cast<const EventNode*>(node.get()); });
}

}  // namespace bringup::torch_ext::graphs
