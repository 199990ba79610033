// A device graph: nodes that one launch runs in the order they were added.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "sim/kernel_run.h"
#include "sim/stream.h"

namespace bringup::sim {

class Graph {
 public:
  explicit Graph(int32_t device) : device_(device) {}

  using Node = std::variant<OwnedLaunch, CopyTask, HostTask>;

  int32_t device() const noexcept { return device_; }
  void add(Node node);
  // Runs all nodes; stops at the first kernel that fails and returns what it said. Two runs never
  // overlap.
  std::optional<std::string> run(const Place& place);

 private:
  const int32_t device_;
  std::mutex mutex_;
  std::vector<Node> nodes_;
};

}  // namespace bringup::sim
