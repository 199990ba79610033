// A device graph: nodes that one launch runs in the order they were added.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
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
struct GraphKernels : std::vector<GraphKernel> {
  std::vector<std::shared_ptr<const GraphKernels>> parts;  // of the graphs of its nodes
};

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
  // A node that chooses by a byte, when it is come to, and its two graphs; see driver.h. They stay
  // where they are.
  std::pair<std::shared_ptr<Graph>*, std::shared_ptr<Graph>*> add(bringup_conditional kind,
                                                                  const uint8_t* predicate);
  // Throws SimError for a kernel that the graph does not have, or has in the other form.
  void update(int32_t kernel, const bringup_launch& launch);
  void update(int32_t kernel, ValuesLaunch launch);
  // What a launch made now runs with.
  std::shared_ptr<const GraphKernels> kernels();
  // Runs all nodes; stops at the first kernel that fails and returns what it said. Two runs never
  // overlap. `stopped`: loops end.
  std::optional<Failure> run(const GraphKernels& kernels, const Place& place,
                             const std::function<bool()>& stopped);

 private:
  struct KernelNode {
    size_t number;
    std::optional<OwnedLaunch> launch;  // released with the graph
  };
  struct ConditionalNode {
    bringup_conditional kind;
    const uint8_t* predicate;
    size_t number;  // of the first of its graphs
  };
  using Node = std::variant<KernelNode, CopyTask, HostTask, std::vector<Task>, ConditionalNode>;

  static std::optional<Failure> run_captured(std::vector<Task>& tasks, const Place& place);
  static std::optional<Failure> run_kernel(const GraphKernel& kernel, const Place& place);
  void add(GraphKernel kernel, std::optional<OwnedLaunch> launch);
  void update(int32_t number, GraphKernel kernel);
  GraphKernels& changeable_kernels();

  const int32_t device_;
  std::mutex mutex_;  // guards nodes_; held while they run
  std::vector<Node> nodes_;
  std::optional<Failure> run_conditional(const ConditionalNode& node, const GraphKernels& kernels,
                                         const Place& place, const std::function<bool()>& stopped);
  std::mutex kernels_mutex_;  // guards kernels_ and, with mutex_, parts_
  std::deque<std::shared_ptr<Graph>> parts_;
  std::shared_ptr<GraphKernels> kernels_ =
      std::make_shared<GraphKernels>();  // shared with launches
};

}  // namespace bringup::sim
