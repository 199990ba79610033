// A hash map from integers to small values, in one piece of memory: no allocation an entry.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace bringup::engine {

// `kNone` is never a key.
template <class Key, class Value, Key kNone>
class FlatMap {
 public:
  size_t size() const { return size_; }

  void reserve(size_t count) {
    if (2 * count > slots_.size()) grow(std::bit_ceil(2 * count));
  }

  // Null when there is none; valid until the next insertion or erase.
  const Value* find(Key key) const {
    if (slots_.empty()) return nullptr;
    for (size_t i = home(key);; i = next(i)) {
      if (slots_[i].first == key) return &slots_[i].second;
      if (slots_[i].first == kNone) return nullptr;
    }
  }

  // Asks the processor for the memory where the key would be.
  void prefetch(Key key) const {
    if (!slots_.empty()) __builtin_prefetch(&slots_[home(key)]);
  }

  bool contains(Key key) const { return find(key) != nullptr; }

  // Does nothing when the key is there.
  void insert(Key key, Value value) {
    if (2 * (size_ + 1) > slots_.size()) grow(slots_.empty() ? 16 : 2 * slots_.size());
    size_t i = home(key);
    for (; slots_[i].first != kNone; i = next(i)) {
      if (slots_[i].first == key) return;
    }
    slots_[i] = {key, value};
    ++size_;
  }

  // Entries that stood behind the erased one move up, so that no search ends too early.
  void erase(Key key) {
    if (slots_.empty()) return;
    size_t hole = home(key);
    for (; slots_[hole].first != key; hole = next(hole)) {
      if (slots_[hole].first == kNone) return;
    }
    for (size_t i = next(hole); slots_[i].first != kNone; i = next(i)) {
      const size_t wanted = home(slots_[i].first);
      const bool stays = hole <= i ? hole < wanted && wanted <= i : hole < wanted || wanted <= i;
      if (stays) continue;
      slots_[hole] = slots_[i];
      hole = i;
    }
    slots_[hole].first = kNone;
    --size_;
  }

 private:
  using Slot = std::pair<Key, Value>;

  size_t home(Key key) const {
    return (uint64_t{key} * 0x9e3779b97f4a7c15u) >> (64 - std::countr_zero(slots_.size()));
  }
  size_t next(size_t i) const { return (i + 1) & (slots_.size() - 1); }

  void grow(size_t capacity) {
    std::vector<Slot> former = std::exchange(slots_, std::vector<Slot>(capacity, {kNone, Value{}}));
    size_ = 0;
    for (const Slot& slot : former) {
      if (slot.first != kNone) insert(slot.first, slot.second);
    }
  }

  std::vector<Slot> slots_;  // a power of two, at most half of them taken
  size_t size_ = 0;
};

}  // namespace bringup::engine
