// A captured graph: its nodes, the memory they work in, and one way to run them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "torch/graphs/allocation_interceptors.h"
#include "torch/graphs/copies.h"
#include "torch/graphs/device_graph.h"
#include "torch/graphs/fused_runs.h"
#include "torch/graphs/gradients.h"
#include "torch/graphs/handover.h"
#include "torch/graphs/node.h"
#include "torch/graphs/run_locks.h"
#include "torch/graphs/slot_values.h"
#include "torch/graphs/version_counters.h"
#include "torch/graphs/watch.h"

namespace bringup::torch_ext::graphs {

// A tensor that a node reads or writes, described without naming an address.
struct Access {
  size_t memory;  // the same number for the same storage, counted from 0 in order of appearance
  bool writes;
  bool predates;     // the memory was there before the capture
  std::string what;  // "float32[2, 3]"
};

class Graph {
 public:
  // `devices`: the driver's that the nodes work on, none for cpu. `copies_to_host`:
  // whether nodes on the device write memory of the host. `level`, `verify`: see Replay.
  Graph(std::shared_ptr<Pool> pool, std::vector<std::unique_ptr<Node>> nodes, Inputs inputs,
        const std::vector<c10::DeviceIndex>& devices, bool copies_to_host, GraphRandom random,
        int level, int64_t verify);

  // At the end of the capture: what check_given() checks, and whose counters a replay moves.
  void take_given(std::shared_ptr<Watch> watch, WrittenVersions versions);

  // Raises CaptureFailure when something that the capture took as given is different now. With the
  // GIL. Returns the gradients that a replay has to find first.
  Gradients::Moved check_given();
  // What a replay calls, with the GIL: checks, and runs `body` without it between bringing
  // gradients to where nodes read them and leaving them as the captured code does.
  template <class Body>
  void with_given(Body&& body) {
    const Gradients::Moved moved = check_given();
    gradients_.bring(moved);
    {
      const nanobind::gil_scoped_release no_gil;
      body();
    }
    gradients_.leave(moved);
  }
  Gradients& gradients() { return gradients_; }
  // The same after reading frozen weights in full; see Watch::refresh.
  void refresh_given();

  // Runs all nodes in capture order, from any thread. A node's error is raised with the node named.
  // On a device it launches them in the current stream, and errors are raised by the next
  // synchronisation; it waits for them when they read or write memory that the host has too.
  // CaptureFailure when two threads do this at once, in both of them: one may have read the other's
  // inputs, and its results are overwritten before it reads them.
  void replay();

  // The same with copies: inputs in before it, `results` out after it, which are returned. Runs of
  // this graph and of those that share a lock come one after the other, on a device the
  // copies too, in whatever streams; no replay() gets through. CaptureFailure also when a
  // replay() was refused, whose caller may have written the inputs, and for a run of this
  // graph inside of a run. `before` may write slots: when the run fails before its nodes start,
  // they are as they were.
  std::vector<at::Tensor> run(const RunLocks& run_locks, std::vector<InputCopy> inputs,
                              const std::vector<at::Tensor>& results,
                              const std::function<void()>& before);
  // A replay that waits for each node before the next: when each began and ended.
  struct NodeTime {
    size_t node;
    int64_t begin;  // nanoseconds since the replay began
    int64_t end;
  };
  std::vector<NodeTime> replay_timed();
  // All that run() may be given to copy into, also where it has nothing to copy.
  void set_run_inputs(std::vector<at::Tensor> inputs) { run_inputs_ = std::move(inputs); }
  // A replay for the thread that made the graph and alone has it.
  void replay_alone() { run_all(false); }

  // Whether a node writes memory of the tensor's storage, and whether nodes or the pool know it.
  bool writes(const at::Tensor& tensor) const;
  bool knows(const at::Tensor& tensor) const;
  // Whether the storage is the graph's own.
  bool owns(const at::Tensor& tensor) const { return pool_->find(tensor.storage()) != nullptr; }
  // A result that does not keep its memory from later captures of the pool, for run() to copy from;
  // what is not the graph's own, as it is.
  at::Tensor unowned(const at::Tensor& tensor) const;

  // The first run: nodes settle how they keep their addresses.
  void validate();

  // Writes all changes, or raises what a changed call would raise and writes none; drops those that
  // change nothing. The next replay sees them, those under way do not; it waits for none of them.
  // Without the GIL.
  void write(Changes& changes);
  // After write(), with the GIL: captured tensors that no node reads any more are not watched.
  void forget_replaced();
  // Whether the next replay will see all these values anyhow.
  bool has(const Changes& values) const { return values_.has(values); }
  // Whether an argument is these tensors: the same memory, seen in the same way.
  bool takes(size_t node, size_t argument, const std::vector<at::Tensor>& tensors) const;
  // The value of an argument that the next replay will see; see Node::host_value.
  std::optional<HostValue> host_value(size_t node, size_t argument) const {
    return values_.host_value(node, argument);
  }

  // That its nodes work on, the first one.
  c10::Device device() const {
    return device_graph_ == nullptr ? c10::Device(c10::kCPU)
                                    : c10::Device(c10::kPrivateUse1, device_graph_->device());
  }

  // All of them; none on the cpu.
  std::vector<c10::DeviceIndex> devices() const {
    return device_graph_ == nullptr ? std::vector<c10::DeviceIndex>()
                                    : device_graph_->work()->devices();
  }

  // The driver's graphs; none on the cpu.
  std::vector<bringup_graph> driver_graphs() const {
    return device_graph_ == nullptr ? std::vector<bringup_graph>() : device_graph_->driver_graphs();
  }

  // What operators are given now. Without the GIL: it waits for a replay.
  FusedRuns::Arguments arguments();
  // From the next replay on these do the work of their nodes; null: why none does, for people.
  void fuse(std::shared_ptr<FusedRuns> fused, std::string why_not) {
    fused_.give(std::move(fused), std::move(why_not));
  }
  // The same with kernels of the device, which do the work of what it runs itself. Without the GIL:
  // it waits for a replay.
  void fuse(std::shared_ptr<FusedRuns> fused, std::vector<DeviceRuns::Run> runs);
  // Which level runs a node now, and why no higher one.
  std::pair<int, std::string> level(size_t node) const;

  void visit_accesses(const AccessVisitor& visit) const;
  // What every node reads and writes, in replay order.
  std::vector<std::vector<Access>> accesses() const;

  const std::vector<std::unique_ptr<Node>>& nodes() const { return nodes_; }
  const SlotValues& values() const { return values_; }
  const GraphRandom& random() const { return random_; }
  // Whether a replay waits for the device, as the host has memory of it too.
  bool shares_host_memory() const { return shares_host_memory_; }
  size_t reserved_bytes() const { return pool_->bytes(); }
  const std::shared_ptr<MemoryPool>& memory_pool() const { return pool_->shared_memory(); }
  const Pool& pool() const { return *pool_; }
  struct MemoryUse {
    size_t results;  // of tensors of the capture that are still held
    size_t intermediates;
    size_t constants;
    size_t inputs;  // from before the capture; the graph keeps it
    size_t shared;  // of results and intermediates: other graphs of the pool use it too
  };
  MemoryUse memory_use() const;

 private:
  Gradients::Moved check_gradients(std::optional<std::string> change);
  void begin_run(const RunLocks::Held& held);
  std::optional<std::string> end_run(const RunLocks::Held& held) noexcept;
  bool any_access(const at::Tensor& tensor, bool only_writes) const;
  void check_inputs() const;
  void check(const Changes& changes, const std::vector<HostValue>& as_read) const;
  void check_overlap(const Change& change) const;
  void check_replaced() const;
  HostValue as_node_reads(size_t node, const HostValue& value) const;
  void drop_retired();
  void note_stream();
  void follow_pool() const;
  void wait_for_room();
  std::optional<uint64_t> stage_for_launch();
  void update_device();
  void update_device(size_t node);
  std::optional<uint64_t> prepare_launch(bool validating);
  void run_all(bool validating);
  template <class Run>
  void run_on_host(Run&& run);
  void wait_before_nodes();
  size_t run_waiting(size_t position, FusedRuns* fused);
  bool compares_kernels();
  void run_compared();
  void take_random_numbers();
  void take_random_numbers(size_t node);
  void restore_slots();
  void run_node(size_t position);
  // The position behind what it ran, or where that leads.
  size_t run_next(size_t position, FusedRuns* fused, const std::function<void(size_t)>& run_one);
  void run_span(size_t& next, size_t last);
  void latch(uint64_t launch);

  std::vector<at::Tensor> run_inputs_;
  std::atomic<std::thread::id> runner_;  // the thread that is in run()
  // The order in which they are taken.
  std::mutex mutex_;         // one replay at a time
  std::mutex update_mutex_;  // one update at a time, and what former_ holds
  std::shared_ptr<Pool> pool_;
  std::vector<std::unique_ptr<Node>> nodes_;
  SlotValues values_;
  c10::SmallVector<c10::Stream, 2> streams_;  // of launches; with mutex_
  std::vector<Change> former_;  // what slots were that run() has written, until its nodes start
  std::shared_ptr<Watch> watch_;
  Gradients gradients_;
  WrittenVersions versions_;
  GraphRandom random_;
  Replay replay_;
  Handover<FusedRuns> fused_;
  FusedRuns* launched_ = nullptr;  // of the launch that runs now; only its thread looks
  // Nodes on the host whose first run is to come; of these, which. Only replays look.
  size_t unvalidated_ = 0;
  std::vector<bool> is_unvalidated_;
  mutable std::mutex fused_mutex_;
  bool shares_host_memory_ = false;            // a device graph: a replay waits
  std::unique_ptr<DeviceGraph> device_graph_;  // goes first: it waits for what uses the rest
  std::unique_ptr<DeviceGraph> fused_graph_;   // that of level 2; changes with both mutexes
  int64_t fused_launches_ = 0;
};

}  // namespace bringup::torch_ext::graphs
