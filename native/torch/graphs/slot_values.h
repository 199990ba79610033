// The one owner of what the arguments of a graph's nodes are: what nodes have now, what updates
// have staged for later launches, what tensor slots were given, and what has to go because of that.
// From any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "torch/graphs/inputs.h"
#include "torch/graphs/node.h"
#include "torch/graphs/staged_changes.h"

namespace bringup::torch_ext::graphs {

class SlotValues {
 public:
  SlotValues(const std::vector<std::unique_ptr<Node>>& nodes, Inputs inputs)
      : nodes_(nodes), inputs_(std::move(inputs)) {}
  // The driver copies the arguments of such a node's kernel, and update_device() gives it new ones.
  void set_copied(std::vector<bool> nodes) { is_copied_ = std::move(nodes); }

  // For what reads nodes or inputs() while updates go on; held for moments, never while calling
  // anything.
  [[nodiscard]] std::unique_lock<std::mutex> lock() const { return std::unique_lock(mutex_); }
  const Inputs& inputs() const { return inputs_; }

  // The value of an argument that the next launch will see; see Node::host_value.
  std::optional<HostValue> host_value(size_t node, size_t argument) const;
  // Whether the next launch will see all these values anyhow; drops those that it will.
  bool has(const Changes& values) const;
  void drop_present(Changes& changes) const;
  // What the next launch will see of all arguments, as the node reads them.
  std::vector<c10::IValue> next_arguments(size_t node) const;

  // For the next launch, all at once: changes as they were given, and as their nodes read them.
  void stage(c10::ArrayRef<Change> changes, std::vector<HostValue> as_read);
  // From here on a change is for the launch after this one: its number where it has changes.
  std::optional<uint64_t> begin_launch();
  // What belongs to launches up to this one reaches the nodes.
  void latch(uint64_t launch);
  // The last launch where another one has to wait until one of the former has begun.
  std::optional<uint64_t> full() const;
  // A node whose copied arguments changed since; taken out by forget_stale(). Of one thread.
  std::optional<size_t> stale() const;
  void forget_stale(size_t node) { stale_.erase(node); }

  // Tensors that slots had: for a moment when no replay is about to launch, off the driver's
  // thread.
  std::vector<at::Tensor> take_retired();
  // Of captured tensors, what no node reads any more.
  std::vector<c10::Storage> take_replaced();

 private:
  const c10::IValue& next(size_t node, size_t argument) const;
  const c10::IValue& given(size_t node, size_t argument) const;
  bool has_locked(const Change& value) const;
  void stage_locked(const Change& change, HostValue as_read);
  void apply(const Change& change);
  // What belongs to launches up to this one reaches the nodes, which are put into `changed`.
  void begin(StagedChanges& staged, uint64_t launch, std::set<size_t>& changed);
  void retire(const c10::IValue& value);

  mutable std::mutex mutex_;
  const std::vector<std::unique_ptr<Node>>& nodes_;
  std::vector<bool> is_copied_;
  Inputs inputs_;
  StagedChanges staged_;    // for nodes that read their arguments when they run
  StagedChanges copied_;    // for kernels whose arguments the driver has copied
  std::set<size_t> stale_;  // such kernels that it has not got yet
  std::vector<at::Tensor> retired_;
  std::vector<c10::Storage> replaced_;
};

}  // namespace bringup::torch_ext::graphs
