// A captured graph as the driver's graph: one launch replays it in stream order.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "bringup/driver.h"
#include "torch/devices/state.h"
#include "torch/graphs/control_node.h"
#include "torch/graphs/device_runs.h"
#include "torch/graphs/node.h"
#include "torch/graphs/staged_changes.h"
#include "torch/operators/lists.h"

namespace bringup::torch_ext::graphs {

// The work that one graph has enqueued on its devices.
class DeviceWork {
 public:
  explicit DeviceWork(std::vector<c10::DeviceIndex> devices);

  // What follows in the current streams of its devices comes after it.
  void order_before() const;
  // What was enqueued in these streams until here belongs to it, and what follows in any of them
  // comes after all of it.
  void extend() const;
  // What follows in one device's current stream comes after what was enqueued in another's.
  void hand_over(c10::DeviceIndex from, c10::DeviceIndex to) const;
  // Until it is done; a status of the driver.
  int32_t wait() const noexcept;

  c10::DeviceIndex device() const { return devices_.front(); }
  const std::vector<c10::DeviceIndex>& devices() const { return devices_; }

 private:
  const std::vector<c10::DeviceIndex> devices_;
  EventPtr over_;                  // of the first one
  std::vector<EventPtr> reached_;  // where there are several, of each
};

class DeviceGraph {
 public:
  // Runs nodes from `next` to the one before `last` on the host, from the driver's thread; throws
  // what node `next` throws.
  using Steps = std::function<void(size_t& next, size_t last)>;

  // Called on the device's timeline, from the driver's thread, when a launch begins.
  using Begin = std::function<void()>;

  // Called on the device's timeline, from the driver's thread, right before a launch that was given
  // a number and after all former ones.
  using Latch = std::function<void(uint64_t number)>;

  // Called before a node whose kernel draws, and which nothing runs beside; null where a replay
  // knows all numbers before.
  using Draw = std::function<void(size_t node)>;

  // CaptureFailure when the driver cannot hold such a graph. `nodes` must outlive this object.
  DeviceGraph(const std::vector<c10::DeviceIndex>& devices,
              const std::vector<std::unique_ptr<Node>>& nodes, Steps steps, Begin begin,
              Latch latch, Draw draw);
  // The same nodes, of which `runs` does the work of some. Launches of both come one after the
  // other.
  DeviceGraph(const DeviceGraph& other, std::shared_ptr<DeviceRuns> runs);
  // Waits for the last launch.
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  // Whether the driver has copied the arguments of a node's kernel, and gets new ones by a call.
  bool copies_arguments(size_t node) const;
  // The node's kernel has new arguments: for later launches.
  void update(size_t node);
  // Launches in the current stream, after the launch before. `number`: for the latch; those of one
  // graph ascend, and no more than StagedChanges::kMostAhead are under way at a time.
  void launch(std::optional<uint64_t> number);
  // Runs one node of the device now and waits for it. Nothing of the graph is under way.
  void run_alone(size_t node);
  // The same for a generated kernel that begins with the node, and for the nodes, whose results
  // stay; raises where bits differ. How many nodes that were, or 0: none begins there.
  size_t run_compared(size_t node);
  // Whether a launch does what the nodes do, with what they are given now.
  bool fits() const { return runs_ == nullptr || runs_->fit(); }
  // Whether a generated kernel does the node's work.
  bool is_fused(size_t node) const { return runs_ != nullptr && runs_->nodes_of(node).has_value(); }
  // Later launches come after the current stream's work until here.
  void order_after() noexcept;
  // Until the last launch is over. Raises what the driver says of it.
  void finish_former();
  // Until the last launch is over. What failed is raised by the next synchronisation.
  void wait() noexcept;

  c10::DeviceIndex device() const { return work_->device(); }
  // The driver's graphs that a launch is made of.
  std::vector<bringup_graph> driver_graphs() const;
  // Its launches, and what came before order_after().
  const std::shared_ptr<const DeviceWork>& work() const { return work_; }

 private:
  // torch.cond or torch.while_loop: nodes from `begin` to before `end`, of which `control` chooses.
  struct Construct {
    size_t begin;
    size_t control;
    size_t end;
    bool is_loop;
  };
  struct Loop {
    DeviceGraph* graph;
    const ControlNode* control;
  };

  // Consecutive nodes that run on the host.
  struct Span {
    DeviceGraph* graph;
    size_t first;
    size_t last;
  };

  // Where the event of its launches cannot tell: what runs must not lose the graph under it.
  void wait_for_everything() noexcept;
  void build();
  // Adds the node, and others after it that one launch does the work of: the one behind them.
  size_t add_from(size_t node);
  void add_span(size_t first, size_t last);
  // Of nodes from `first` the one behind those that one launch can make; before `last`.
  size_t end_of_list(size_t first) const;
  void add_list(size_t first, size_t last);
  void add_to_driver(size_t number);
  // The driver's graph that nodes are added to now, the last part.
  bringup_graph graph();
  // Where parts begin because of control flow, which the host follows then; none where all of it
  // runs on the host.
  std::set<size_t> cuts() const;
  // Whether the device follows it instead, in one graph of the driver.
  bool device_follows() const;
  const ControlNode* control_at(size_t node) const;  // or null
  bool needs_device(size_t first, size_t last) const;
  void add_nodes(size_t first, size_t last);
  void add_construct(const Construct& one);
  void add_inside(bringup_graph graph, size_t first, size_t last);
  void launch_part(size_t& part);
  void follow(size_t& part);
  static void run_between_graphs(Node& node, size_t number, c10::DeviceIndex device);
  void add_kernel(size_t first, size_t last);
  void launch_parts();
  void destroy_parts() noexcept;
  // The driver's graph, or what the launching thread does between two of them.
  struct Part {
    size_t first;  // node
    c10::DeviceIndex device;
    bringup_graph graph = nullptr;
    Node* between = nullptr;
    ControlNode* control = nullptr;
  };
  // A kernel, by the number that it has in a graph.
  struct Place {
    bringup_graph graph;
    int32_t number;
  };
  // Consecutive nodes as one launch of kernel.h's form; of plain values nothing is kept.
  struct List {
    size_t first;
    size_t last;
    std::vector<void*> args;
    std::vector<uint8_t> kinds;
    bringup_launch launch;
  };
  const bringup_launch& launch_of(List& list) const;
  PlainLaunch values_of(const List& list) const;
  void update_list(List& list);
  struct Numbered {
    DeviceGraph* graph;
    uint64_t number;
  };

  static void begin(void* graph);
  static void begin_numbered(void* numbered);
  static void run_span(void* span);
  static void end_if_failed(void* loop);

  const std::shared_ptr<const DeviceWork> work_;
  const Steps steps_;
  const Begin begin_;
  const Latch latch_;
  const Draw draw_;
  std::array<Numbered, StagedChanges::kMostAhead> numbered_{};  // of launches, in turn
  const std::vector<std::unique_ptr<Node>>& nodes_;
  const std::shared_ptr<DeviceRuns> runs_;  // or null
  std::vector<std::unique_ptr<Span>> spans_;
  std::vector<std::unique_ptr<Loop>> loops_;               // that a failure on the host ends
  std::unordered_multimap<size_t, Construct> constructs_;  // by where they begin
  bringup_graph inside_ = nullptr;                         // that of a construct
  std::vector<Part> parts_;                                // in the order of nodes
  size_t adding_ = 0;                                      // the node that is added now
  std::set<size_t> cuts_;
  std::unordered_map<size_t, Place> kernels_;  // of nodes
  int32_t kernel_count_ = 0;                   // of the last part
  std::vector<std::unique_ptr<List>> lists_;
  c10::DeviceIndex now_ = 0;  // the device that a launch was enqueued on last
  bool failed_ = false;       // the launch that runs now; only its thread looks
};

}  // namespace bringup::torch_ext::graphs
