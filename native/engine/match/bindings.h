// What the pieces of a pattern stand for while it is being matched, and taking that back.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/pattern/program.h"

namespace bringup::engine {

// Arguments of the graph that a name stands for: one item, or a run of items (a list).
struct Captured {
  const Argument* first = nullptr;  // null: unbound, unless it is a list
  uint32_t count = 0;               // of items; 1 unless it is a list
  bool is_list = false;
  bool bound = false;
  ArgumentSpan span() const;  // with all that belongs to the items
};

// The nodes that stand for nodes of the pattern: which of the program's, by node of the graph.
class TakenNodes {
 public:
  uint32_t find(NodeId node) const;  // kNoSlot: not taken
  void push(NodeId node, uint32_t pattern_node);
  void pop();
  // In the order in which they were taken.
  const std::vector<std::pair<NodeId, uint32_t>>& all() const { return all_; }

 private:
  static constexpr size_t kIndexed = 16;
  std::vector<std::pair<NodeId, uint32_t>> all_;
  std::unordered_map<NodeId, uint32_t> index_;  // of all, once there are many
};

// One occurrence of a sub-pattern: where its slots begin in each table.
struct PatternFrame {
  uint32_t sub = 0;
  uint32_t parent = kNoSlot;
  uint32_t nodes = 0, inputs = 0, choices = 0, names = 0, sizes = 0, lists = 0;
};

struct ListBinding {
  bool bound = false;
  const Argument* first = nullptr;  // the values, side by side
  uint32_t count = 0;
  std::vector<uint32_t> frames;  // one for each value
};

class Bindings {
 public:
  explicit Bindings(const Program& program);

  const PatternFrame& frame(uint32_t number) const { return frames_[number]; }
  const SubPattern& sub(uint32_t frame) const { return program_.subs()[frames_[frame].sub]; }
  uint32_t add_frame(uint32_t sub, uint32_t parent);
  uint32_t scope(uint32_t frame, uint32_t hops) const;

  NodeId node(uint32_t frame, uint32_t slot) const { return nodes_[frames_[frame].nodes + slot]; }
  ValueId input(uint32_t frame, uint32_t slot) const {
    return inputs_[frames_[frame].inputs + slot];
  }
  // The alternative taken; kNoSlot: none yet.
  uint32_t choice(uint32_t frame, uint32_t slot) const {
    return choices_[frames_[frame].choices + slot];
  }
  const Captured& name(uint32_t frame, uint32_t slot) const {
    return names_[frames_[frame].names + slot];
  }
  const std::optional<Dim>& size(uint32_t frame, uint32_t slot) const {
    return sizes_[frames_[frame].sizes + slot];
  }
  const ListBinding& list(uint32_t frame, uint32_t slot) const {
    return lists_[frames_[frame].lists + slot];
  }
  const TakenNodes& taken() const { return taken_; }
  // How many nodes of the pattern itself are bound.
  uint32_t root_nodes() const { return root_nodes_; }

  void set_node(uint32_t frame, uint32_t slot, NodeId node);
  void set_input(uint32_t frame, uint32_t slot, ValueId value) {
    put(What::kInput, inputs_, frames_[frame].inputs + slot, value);
  }
  void set_choice(uint32_t frame, uint32_t slot, uint32_t alternative) {
    put(What::kChoice, choices_, frames_[frame].choices + slot, alternative);
  }
  void set_name(uint32_t frame, uint32_t slot, Captured captured);
  void set_size(uint32_t frame, uint32_t slot, Dim dim) {
    put(What::kSize, sizes_, frames_[frame].sizes + slot, std::optional(dim));
  }
  void set_list(uint32_t frame, uint32_t slot, ListBinding list);

  size_t savepoint() const { return trail_.size(); }
  void rollback_to(size_t savepoint);

  // What a term that is a value stands for; nothing when it is unbound, or no value.
  std::optional<ValueId> resolve(uint32_t frame, uint32_t term) const;
  // The root and the frames of all items, each once, items in the order of their lists.
  std::vector<uint32_t> frames() const;

 private:
  enum class What : uint8_t { kNode, kTaken, kInput, kChoice, kName, kSize, kList, kFrame };
  struct Step {
    What what;
    uint32_t place;
  };
  template <class T>
  void put(What what, std::vector<T>& table, uint32_t place, T value) {
    table[place] = std::move(value);
    trail_.push_back({what, place});
  }
  void drop_frame();
  void add_items(uint32_t frame, std::vector<uint32_t>& agenda) const;

  const Program& program_;
  std::vector<PatternFrame> frames_;
  std::vector<NodeId> nodes_;
  std::vector<ValueId> inputs_;
  std::vector<uint32_t> choices_;
  std::vector<Captured> names_;
  std::vector<std::optional<Dim>> sizes_;
  std::vector<ListBinding> lists_;
  TakenNodes taken_;
  uint32_t root_nodes_ = 0;
  std::vector<Step> trail_;
};

}  // namespace bringup::engine
