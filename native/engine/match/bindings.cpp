#include "engine/match/bindings.h"

#include <algorithm>
#include <unordered_set>

namespace bringup::engine {

ArgumentSpan Captured::span() const {
  size_t length = 0;
  for (uint32_t i = 0; i < count; ++i) length += 1 + size_t{first[length].extent};
  return {first, length};
}

uint32_t TakenNodes::find(NodeId node) const {
  if (all_.size() > kIndexed) {
    const auto found = index_.find(node);
    return found == index_.end() ? kNoSlot : found->second;
  }
  for (const auto& [taken, pattern_node] : all_) {
    if (taken == node) return pattern_node;
  }
  return kNoSlot;
}

void TakenNodes::push(NodeId node, uint32_t pattern_node) {
  all_.emplace_back(node, pattern_node);
  if (all_.size() == kIndexed + 1) index_ = {all_.begin(), all_.end()};
  if (all_.size() > kIndexed + 1) index_.emplace(node, pattern_node);
}

void TakenNodes::pop() {
  if (all_.size() > kIndexed) index_.erase(all_.back().first);
  all_.pop_back();
}

Bindings::Bindings(const Program& program) : program_(program) {
  add_frame(0, kNoSlot);
  trail_.clear();
}

uint32_t Bindings::add_frame(uint32_t sub, uint32_t parent) {
  const SubPattern& made = program_.subs()[sub];
  const auto number = static_cast<uint32_t>(frames_.size());
  const auto size = [](const auto& table) { return static_cast<uint32_t>(table.size()); };
  frames_.push_back({sub, parent, size(nodes_), size(inputs_), size(choices_), size(names_),
                     size(sizes_), size(lists_)});
  nodes_.resize(nodes_.size() + made.nodes.size(), kNoNode);
  inputs_.resize(inputs_.size() + made.inputs.size());
  choices_.resize(choices_.size() + made.choices.size(), kNoSlot);
  names_.resize(names_.size() + made.names.size());
  sizes_.resize(sizes_.size() + made.sizes.size());
  lists_.resize(lists_.size() + made.lists.size());
  trail_.push_back({What::kFrame, number});
  return number;
}

void Bindings::drop_frame() {
  const PatternFrame& last = frames_.back();
  nodes_.resize(last.nodes);
  inputs_.resize(last.inputs);
  choices_.resize(last.choices);
  names_.resize(last.names);
  sizes_.resize(last.sizes);
  lists_.resize(last.lists);
  frames_.pop_back();
}

uint32_t Bindings::scope(uint32_t frame, uint32_t hops) const {
  for (; hops > 0; --hops) frame = frames_[frame].parent;
  return frame;
}

void Bindings::set_node(uint32_t frame, uint32_t slot, NodeId node) {
  const uint32_t place = frames_[frame].nodes + slot;
  nodes_[place] = node;
  if (frame == 0) ++root_nodes_;
  trail_.push_back({What::kNode, place});
  if (taken_.find(node) != kNoSlot) return;
  taken_.push(node, sub(frame).first_node + slot);
  trail_.push_back({What::kTaken, 0});
}

void Bindings::set_name(uint32_t frame, uint32_t slot, Captured captured) {
  captured.bound = true;
  put(What::kName, names_, frames_[frame].names + slot, captured);
}

void Bindings::set_list(uint32_t frame, uint32_t slot, ListBinding list) {
  list.bound = true;
  put(What::kList, lists_, frames_[frame].lists + slot, std::move(list));
}

void Bindings::rollback_to(size_t savepoint) {
  while (trail_.size() > savepoint) {
    const Step step = trail_.back();
    trail_.pop_back();
    switch (step.what) {
      case What::kNode:
        nodes_[step.place] = kNoNode;
        if (step.place < program_.root().nodes.size()) --root_nodes_;
        break;
      case What::kTaken:
        taken_.pop();
        break;
      case What::kInput:
        inputs_[step.place] = {};
        break;
      case What::kChoice:
        choices_[step.place] = kNoSlot;
        break;
      case What::kName:
        names_[step.place] = {};
        break;
      case What::kSize:
        sizes_[step.place].reset();
        break;
      case What::kList:
        lists_[step.place] = {};
        break;
      case What::kFrame:
        drop_frame();
        break;
    }
  }
}

std::optional<ValueId> Bindings::resolve(uint32_t frame, uint32_t term) const {
  const Term* found = &program_.term(term);
  while (found->kind == Term::Kind::kChoice) {
    const uint32_t taken = choice(frame, found->slot);
    if (taken == kNoSlot) return std::nullopt;
    found = &program_.term(sub(frame).choices[found->slot].alternatives[taken]);
  }
  if (found->kind == Term::Kind::kInput) {
    const ValueId value = input(frame, found->slot);
    return value.node == kNoNode ? std::nullopt : std::optional(value);
  }
  if (found->kind != Term::Kind::kNode) return std::nullopt;
  const NodeId bound = node(frame, found->slot);
  return bound == kNoNode ? std::nullopt : std::optional(ValueId{bound, found->index});
}

std::vector<uint32_t> Bindings::frames() const {
  std::vector<uint32_t> found;
  std::unordered_set<uint32_t> seen;
  std::vector<uint32_t> agenda = {0};
  while (!agenda.empty()) {
    const uint32_t frame = agenda.back();
    agenda.pop_back();
    if (!seen.insert(frame).second) continue;
    found.push_back(frame);
    add_items(frame, agenda);
  }
  return found;
}

// The frames of all lists, the first item last: the agenda is read from its end.
void Bindings::add_items(uint32_t frame, std::vector<uint32_t>& agenda) const {
  const std::vector<StringId>& names = sub(frame).lists;
  std::vector<uint32_t> slots(names.size());
  for (uint32_t i = 0; i < slots.size(); ++i) slots[i] = i;
  std::sort(slots.begin(), slots.end(), [&](uint32_t one, uint32_t other) {
    return Strings::text(names[one]) < Strings::text(names[other]);
  });
  const size_t start = agenda.size();
  for (const uint32_t slot : slots) {
    const ListBinding& bound = list(frame, slot);
    agenda.insert(agenda.end(), bound.frames.begin(), bound.frames.end());
  }
  std::reverse(agenda.begin() + static_cast<ptrdiff_t>(start), agenda.end());
}

}  // namespace bringup::engine
