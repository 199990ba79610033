// Which level of a replay runs a graph's nodes, and the switch to another one.
#include <utility>

#include "torch/graphs/graph.h"

namespace bringup::torch_ext::graphs {

FusedRuns::Arguments Graph::arguments() {
  const std::lock_guard boundary(mutex_);
  FusedRuns::Arguments all;
  const auto lock = values_.lock();  // a launch of a device takes new ones
  for (const auto& node : nodes_) all.push_back(node->arguments().vec());
  return all;
}

void Graph::fuse(std::shared_ptr<FusedRuns> fused, std::string why_not) {
  const std::lock_guard boundary(mutex_);
  if (fused != nullptr && device_graph_ == nullptr) fused->take_values();
  const std::lock_guard lock(fused_mutex_);
  fused_ = std::move(fused);
  why_not_fused_ = std::move(why_not);
}

// The graph of lower levels stays: a launch of it may be under way, and updates may bring it back.
void Graph::fuse(std::shared_ptr<FusedRuns> fused, std::vector<DeviceRuns::Run> runs) {
  if (!runs.empty()) {
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
  const std::lock_guard lock(fused_mutex_);
  if (fused_ != nullptr && fused_->runs(node)) return {2, ""};
  const Node& own = *nodes_.at(node);
  const bool is_fused = fused_graph_ != nullptr && fused_graph_->is_fused(node);
  if (is_fused && fused_graph_->fits()) return {2, ""};
  std::string reason = own.why_no_higher();
  if (is_fused) {
    reason = kOtherArguments;
  } else if (replay_.level == 2 && (own.level() == 1 || own.runs_on_device())) {
    reason = fused_ == nullptr ? why_not_fused_ : fused_->why_not(node);
  }
  return {own.level(), std::move(reason)};
}

// A launch that is under way keeps the functions that it began with.
void Graph::begin_on_device() {
  std::shared_ptr<FusedRuns> now;
  {
    const std::lock_guard lock(fused_mutex_);
    now = fused_;
  }
  if (now != nullptr && !now->begin()) now = nullptr;
  const bool is_other = now != launched_;
  launched_ = std::move(now);
  const bool has_values = std::exchange(has_new_values_, false);
  if (launched_ != nullptr && (is_other || has_values)) launched_->take_values();
}

}  // namespace bringup::torch_ext::graphs
