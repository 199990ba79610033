// Changes of host arguments on their way to the nodes. An update belongs to the next launch; its
// values reach the nodes right before that launch runs, while former ones still run with theirs.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "torch/graphs/node.h"

namespace bringup::torch_ext::graphs {

class StagedChanges {
 public:
  // So many launches may have changes of their own before they run.
  static constexpr uint64_t kMostAhead = 64;

  // For the next launch, in place of what it was to see before, which is returned.
  HostValue put(Change change);
  // What the next launch will see where it differs from what the node has; else null.
  const HostValue* newest(size_t node, size_t argument) const;
  bool empty() const { return entries_.empty(); }

  // What was put until here belongs to this launch; its number.
  uint64_t launch() { return ++launches_; }
  uint64_t launches() const { return launches_; }
  // Whether another launch has to wait until one of the former has begun.
  bool full() const { return launches_ - begun_ >= kMostAhead; }

  // Calls apply(const Change&) for what belongs to launches up to this one, oldest first, also
  // where a former one was dropped by the device and never began.
  template <class Apply>
  void begin(uint64_t launch, Apply&& apply) {
    begun_ = launch;
    for (; !entries_.empty() && entries_.front().launch <= launch; ++first_) {
      const Entry& entry = entries_.front();
      apply(entry.change);
      const auto newest = newest_.find(key(entry.change.node, entry.change.argument));
      if (newest->second == first_) newest_.erase(newest);
      entries_.pop_front();
    }
  }

 private:
  struct Entry {
    Change change;
    uint64_t launch;
  };

  static uint64_t key(size_t node, size_t argument) { return node << 16 | argument; }

  std::deque<Entry> entries_;
  uint64_t first_ = 0;                             // position of the first entry
  std::unordered_map<uint64_t, uint64_t> newest_;  // position of an argument's last entry
  uint64_t launches_ = 0;
  uint64_t begun_ = 0;
};

}  // namespace bringup::torch_ext::graphs
