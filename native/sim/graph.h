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
#include "sim/values_launch.h"

namespace bringup::sim {

// A kernel of a graph, in the form it was added in.
using GraphKernel =
    std::variant<std::shared_ptr<const LaunchCopy>, std::shared_ptr<const ValuesLaunch>>;
// All of them; a launch keeps those that it began with.
struct GraphKernels : std::vector<GraphKernel> {};

class Graph {
 public:
  explicit Graph(int32_t device) : device_(device) {}

  int32_t device() const noexcept { return device_; }
  void add(OwnedLaunch launch);
  void add(ValuesLaunch launch);
  void add(CopyTask copy);
  void add(HostTask host);
  // Work of a captured stream, as one node.
  void add(std::vector<Task> captured);
  // Throws SimError for a kernel that the graph does not have, or has in the other form.
  void update(int32_t kernel, const bringup_launch& launch);
  void update(int32_t kernel, ValuesLaunch launch);
  // What a launch made now runs with.
  std::shared_ptr<const GraphKernels> kernels();
  // Runs all nodes; stops at the first kernel that fails and returns what it said. Two runs never
  // overlap.
  std::optional<Failure> run(const GraphKernels& kernels, const Place& place);

 private:
  struct KernelNode {
    size_t number;
    std::optional<OwnedLaunch> launch;  // released with the graph
  };
  using Node = std::variant<KernelNode, CopyTask, HostTask, std::vector<Task>>;

  static std::optional<Failure> run_captured(std::vector<Task>& tasks, const Place& place);
  static std::optional<Failure> run_kernel(const GraphKernel& kernel, const Place& place);
  void add(GraphKernel kernel, std::optional<OwnedLaunch> launch);
  void update(int32_t number, GraphKernel kernel);
  GraphKernels& changeable_kernels();

  const int32_t device_;
  std::mutex mutex_;  // guards nodes_; held while they run
  std::vector<Node> nodes_;
  std::mutex kernels_mutex_;
  std::shared_ptr<GraphKernels> kernels_ =
      std::make_shared<GraphKernels>();  // shared with launches
};

}  // namespace bringup::sim
