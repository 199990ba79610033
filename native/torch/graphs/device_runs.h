// Level 2 of what the device itself runs: the work of consecutive nodes as one generated kernel
// with plain values, which the driver starts.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/values_code.h"
#include "torch/graphs/node.h"

namespace bringup::torch_ext::graphs {

class DeviceRuns {
 public:
  // Of a kernel of operators, where it has its argument.
  struct Place {
    size_t node;
    size_t position;  // among the arguments of its kernel
  };
  // What the generated kernel gets: a tensor, a node's number, or nothing.
  struct Given {
    void* address;  // null: no tensor
    std::vector<int64_t> sizes, strides;
    std::optional<Place> number;
  };
  // A tensor that a node reads and that an update may exchange.
  struct Read {
    Place place;
    const void* address;  // when the kernel was written
  };
  struct Run {
    size_t first, count;  // nodes
    std::string name;
    std::shared_ptr<const runtime::Kernel> kernel;
    std::vector<Given> given;
    std::vector<Read> reads;
    std::vector<size_t> results;  // of which nodes it writes what they write
  };

  // Loads the kernels. `nodes` outlive it.
  DeviceRuns(c10::DeviceIndex device, const std::vector<std::unique_ptr<Node>>& nodes,
             std::vector<Run> runs);

  // The nodes that the run of this node does the work of; none: no run.
  std::optional<std::pair<size_t, size_t>> nodes_of(size_t node) const;
  // What starts that run; as long as its values are not taken again.
  const bringup_launch_values_args* launch(size_t node) const;
  // What nodes are given now: those of the node's run, or all.
  void take_values(size_t node);
  void take_values();
  // Runs the kernel of this node, puts back what it wrote, and runs its nodes. Raises where they
  // give other bits, but for those of NaN.
  void run_compared(size_t node, const std::function<void(size_t)>& run_node) const;
  // Whether every run does what its nodes do: they read what they read when it was written. From
  // any thread.
  bool fit() const;

 private:
  struct State {
    Run run;
    bringup_kernel_fn function = nullptr;
    runtime::ValuesLaunch values;
    bringup_launch_values_args launch{};
    std::atomic<bool> fits = true;
  };

  void take(State& state);

  const c10::DeviceIndex device_;
  const std::vector<std::unique_ptr<Node>>& nodes_;
  std::deque<State> states_;
  std::vector<State*> of_node_;
};

// Whether a generated kernel may do the work of this node of a device, as far as that shows here: a
// kernel of an operator or a driver's copy. Null: it may; else why not.
const char* why_no_device_run(const Node& node);

}  // namespace bringup::torch_ext::graphs
