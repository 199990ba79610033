// Named slots: which host arguments of a graph can be updated, and the update itself, all or
// nothing.
#pragma once

#include <c10/util/ArrayRef.h>
#include <nanobind/nanobind.h>

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "torch/graphs/graph.h"
#include "torch/graphs/slot_type.h"

namespace bringup::torch_ext::graphs {

struct Slot {
  size_t node;
  size_t argument;
  nanobind::tuple name;  // alone in a tuple, as most reports want it
  SlotType type;
  std::optional<size_t> length;          // that a list must have
  std::vector<at::Tensor> layouts = {};  // of captured tensors; none where None was captured
};

class SlotTable {
 public:
  // `resolve(key) -> list[int]` says which slots a key means, or raises; asked once a key.
  // `report`: a named tuple of three, what an update returns.
  SlotTable(std::shared_ptr<Graph> graph, nanobind::callable resolve, nanobind::type_object report)
      : graph_(std::move(graph)), resolve_(std::move(resolve)), report_(std::move(report)) {}

  // `variable_length`: a list may get another length than it had when it was captured.
  void add(size_t node, size_t argument, nanobind::str name, bool variable_length);

  // {key: value}; gives report(changed names, unchanged names, microseconds). UpdateError changes
  // nothing.
  nanobind::object update(const nanobind::dict& values);
  // [(slot number, value)].
  nanobind::object update_slots(const nanobind::list& values);

 private:
  struct Staged;

  const std::vector<size_t>& slots_of(nanobind::handle key);
  void stage(Staged& staged, size_t slot, nanobind::handle value) const;
  std::optional<HostValue> as_predicate(const Slot& slot, nanobind::handle value) const;
  void check_layouts(const Slot& slot, const HostValue& wanted) const;
  nanobind::object commit(Staged& staged);
  nanobind::object names_of(c10::ArrayRef<size_t> slots) const;

  std::shared_ptr<Graph> graph_;
  nanobind::callable resolve_;
  nanobind::type_object report_;
  nanobind::object nothing_ = nanobind::float_(0.0);  // microseconds of what changes nothing
  std::vector<Slot> slots_;
  nanobind::dict known_;                    // key -> position in groups_
  std::deque<std::vector<size_t>> groups_;  // never move: a conversion may add one
};

}  // namespace bringup::torch_ext::graphs
