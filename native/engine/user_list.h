// Who reads a value: each reader once, in no order.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/argument.h"

namespace bringup::engine {

class UserList {
 public:
  std::span<const NodeId> nodes() const { return nodes_; }

  // All reads of one node are added together, so one that is there already is the last.
  void add(NodeId user) {
    if (!nodes_.empty() && nodes_.back() == user) return;
    if (places_) places_->emplace(user, static_cast<uint32_t>(nodes_.size()));
    nodes_.push_back(user);
    if (!places_ && nodes_.size() > kIndexed) index();
  }

  // Does nothing when `user` is not there.
  void remove(NodeId user) {
    const size_t place = find(user);
    if (place == nodes_.size()) return;
    if (places_) {
      (*places_)[nodes_.back()] = static_cast<uint32_t>(place);
      places_->erase(user);
    }
    nodes_[place] = nodes_.back();
    nodes_.pop_back();
  }

 private:
  static constexpr size_t kIndexed = 32;  // from here on a search would show

  void index() {
    places_ = std::make_unique<std::unordered_map<NodeId, uint32_t>>();
    for (uint32_t i = 0; i < nodes_.size(); ++i) places_->emplace(nodes_[i], i);
  }

  size_t find(NodeId user) const {
    if (places_) {
      const auto found = places_->find(user);
      return found == places_->end() ? nodes_.size() : found->second;
    }
    size_t place = 0;
    while (place < nodes_.size() && nodes_[place] != user) ++place;
    return place;
  }

  std::vector<NodeId> nodes_;
  std::unique_ptr<std::unordered_map<NodeId, uint32_t>> places_;
};

}  // namespace bringup::engine
