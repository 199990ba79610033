// Who reads a value: each reader once, in no order.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "engine/graph/argument.h"
#include "engine/util/flat_map.h"

namespace bringup::engine {

// One or two readers stand in the list itself, more elsewhere, from kIndexed on with their places.
class UserList {
 public:
  std::span<const NodeId> nodes() const { return {begin(), size_}; }

  // All reads of one node are added together, so one that is there already is the last.
  void add(NodeId user) {
    if (size_ > 0 && begin()[size_ - 1] == user) return;
    if (size_ < kInline && !many_) {
      few_[size_++] = user;
      return;
    }
    if (!many_) spill();
    many_->nodes.push_back(user);
    if (many_->indexed) many_->places.insert(user, size_);
    ++size_;
    if (size_ > kIndexed && !many_->indexed) index();
  }

  // Does nothing when `user` is not there.
  void remove(NodeId user) {
    const uint32_t place = find(user);
    if (place == size_) return;
    NodeId* const nodes = many_ ? many_->nodes.data() : few_.data();
    const NodeId last = nodes[--size_];
    nodes[place] = last;
    if (!many_) return;
    many_->nodes.pop_back();
    if (!many_->indexed) return;
    many_->places.erase(last);
    if (place == size_) return;
    many_->places.erase(user);
    many_->places.insert(last, place);
  }

 private:
  static constexpr uint32_t kInline = 2;
  static constexpr uint32_t kIndexed = 32;  // from here on a search would show

  struct Many {
    std::vector<NodeId> nodes;
    FlatMap<NodeId, uint32_t, kNoNode> places;
    bool indexed = false;
  };

  const NodeId* begin() const { return many_ ? many_->nodes.data() : few_.data(); }

  void spill() {
    many_ = std::make_unique<Many>();
    many_->nodes.assign(few_.begin(), few_.begin() + size_);
  }

  void index() {
    for (uint32_t i = 0; i < size_; ++i) many_->places.insert(many_->nodes[i], i);
    many_->indexed = true;
  }

  // `size_` when it is not there.
  uint32_t find(NodeId user) const {
    if (many_ && many_->indexed) {
      const uint32_t* place = many_->places.find(user);
      return place == nullptr ? size_ : *place;
    }
    uint32_t place = 0;
    while (place < size_ && begin()[place] != user) ++place;
    return place;
  }

  std::unique_ptr<Many> many_;
  std::array<NodeId, kInline> few_{};
  uint32_t size_ = 0;
};

}  // namespace bringup::engine
