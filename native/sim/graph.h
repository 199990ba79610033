// A device graph: nodes that one launch runs in the order they were added.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "sim/kernel_run.h"
#include "sim/launch_copy.h"
#include "sim/stream.h"

namespace bringup::sim {

class Graph {
 public:
  explicit Graph(int32_t device) : device_(device) {}

  int32_t device() const noexcept { return device_; }
  void add(OwnedLaunch launch);
  void add(CopyTask copy);
  void add(HostTask host);
  // Throws SimError for a kernel that the graph does not have.
  void update(int32_t kernel, const bringup_launch& launch);
  // What a launch made now runs with.
  std::shared_ptr<const LaunchCopies> kernels();
  // Runs all nodes; stops at the first kernel that fails and returns what it said. Two runs never
  // overlap.
  std::optional<Failure> run(const LaunchCopies& kernels, const Place& place);

 private:
  struct KernelNode {
    size_t number;
    OwnedLaunch launch;  // released with the graph
  };
  using Node = std::variant<KernelNode, CopyTask, HostTask>;

  static std::optional<Failure> run_kernel(const bringup_launch& launch, const Place& place);
  LaunchCopies& changeable_kernels();

  const int32_t device_;
  std::mutex mutex_;  // guards nodes_; held while they run
  std::vector<Node> nodes_;
  std::mutex kernels_mutex_;
  std::shared_ptr<LaunchCopies> kernels_ =
      std::make_shared<LaunchCopies>();  // shared with launches
};

}  // namespace bringup::sim
