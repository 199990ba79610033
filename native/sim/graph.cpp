#include "sim/graph.h"

#include <cstring>

namespace bringup::sim {

void Graph::add(Node node) {
  std::lock_guard lock(mutex_);
  nodes_.push_back(std::move(node));
}

std::optional<std::string> Graph::run(const Place& place) {
  std::lock_guard lock(mutex_);
  for (Node& node : nodes_) {
    if (auto* launch = std::get_if<OwnedLaunch>(&node)) {
      if (auto text = run_launch(launch->get(), place)) return text;
    } else if (auto* copy = std::get_if<CopyTask>(&node)) {
      std::memmove(copy->dst, copy->src, copy->bytes);
    } else {
      const HostTask& host = std::get<HostTask>(node);
      host.fn(host.user);
    }
  }
  return std::nullopt;
}

}  // namespace bringup::sim
