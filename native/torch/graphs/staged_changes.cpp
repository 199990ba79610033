#include "torch/graphs/staged_changes.h"

#include <utility>

namespace bringup::torch_ext::graphs {

HostValue StagedChanges::put(Change change) {
  const uint64_t next = launches_ + 1;
  const auto [newest, first] =
      newest_.try_emplace(key(change.node, change.argument), first_ + entries_.size());
  if (!first) {
    Entry& entry = entries_[newest->second - first_];
    if (entry.launch == next) {
      return std::exchange(entry.change.value, std::move(change.value));
    }
    newest->second = first_ + entries_.size();
  }
  entries_.push_back({std::move(change), next});
  return {};
}

const HostValue* StagedChanges::newest(size_t node, size_t argument) const {
  if (entries_.empty()) return nullptr;
  const auto newest = newest_.find(key(node, argument));
  return newest == newest_.end() ? nullptr : &entries_[newest->second - first_].change.value;
}

}  // namespace bringup::torch_ext::graphs
