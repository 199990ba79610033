#include "torch/graphs/slot_values.h"

#include <algorithm>
#include <utility>

#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {

// The rule of what comes first: what was staged last, then what the node has.
const c10::IValue& SlotValues::next(size_t node, size_t argument) const {
  for (const StagedChanges* staged : {&staged_, &copied_}) {
    if (const HostValue* newest = staged->newest(node, argument)) return *newest;
  }
  return nodes_[node]->arguments()[argument];
}

// As updates give it: of a tensor slot the tensor itself, of which a node may have a view of the
// host.
const c10::IValue& SlotValues::given(size_t node, size_t argument) const {
  const c10::IValue* slot = inputs_.slot(node, argument);
  return slot != nullptr ? *slot : next(node, argument);
}

std::optional<HostValue> SlotValues::host_value(size_t node, size_t argument) const {
  const std::lock_guard lock(mutex_);
  const bool is_slot =
      inputs_.slot(node, argument) != nullptr || nodes_.at(node)->host_value(argument);
  return is_slot ? std::optional(given(node, argument)) : std::nullopt;
}

bool SlotValues::has_locked(const Change& value) const {
  return same(value.value, given(value.node, value.argument));
}

bool SlotValues::has(const Changes& values) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(values, [&](const Change& value) { return has_locked(value); });
}

void SlotValues::drop_present(Changes& changes) const {
  const std::lock_guard lock(mutex_);
  const auto had = [&](const Change& change) { return has_locked(change); };
  changes.erase(std::remove_if(changes.begin(), changes.end(), had), changes.end());
}

std::vector<c10::IValue> SlotValues::next_arguments(size_t node) const {
  const std::lock_guard lock(mutex_);
  std::vector<c10::IValue> arguments;
  for (size_t i = 0; i < nodes_[node]->arguments().size(); ++i) arguments.push_back(next(node, i));
  return arguments;
}

void SlotValues::retire(const c10::IValue& value) {
  for_each_tensor(value, [&](const at::Tensor& tensor) { retired_.push_back(tensor); });
}

void SlotValues::stage(c10::ArrayRef<Change> changes, std::vector<HostValue> as_read) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < changes.size(); ++i) stage_locked(changes[i], std::move(as_read[i]));
}

void SlotValues::stage_locked(const Change& change, HostValue as_read) {
  if (inputs_.slot(change.node, change.argument) != nullptr) {
    HostValue own = map_tensors(change.value, [](const at::Tensor& t) { return shallow_copy(t); });
    for (at::Tensor& unused :
         inputs_.replace(change.node, change.argument, std::move(own), nodes_[change.node]->op())) {
      replaced_.push_back(unused.storage());
      retired_.push_back(std::move(unused));
    }
  }
  const bool copied = !is_copied_.empty() && is_copied_[change.node];
  retire((copied ? copied_ : staged_).put({change.node, change.argument, std::move(as_read)}));
}

void SlotValues::apply(const Change& change) {
  Node& node = *nodes_[change.node];
  retire(node.arguments()[change.argument]);
  node.set_host_value(change.argument, change.value);
}

void SlotValues::begin(StagedChanges& staged, uint64_t launch, std::set<size_t>& changed) {
  staged.begin(launch, [&](const Change& change) {
    apply(change);
    changed.insert(change.node);
  });
  for (const size_t node : changed) nodes_[node]->use_values();
}

std::optional<uint64_t> SlotValues::begin_launch() {
  const std::lock_guard lock(mutex_);
  std::set<size_t> changed;
  begin(copied_, copied_.launch(), changed);
  stale_.merge(changed);
  if (staged_.empty()) return std::nullopt;
  return staged_.launch();
}

void SlotValues::latch(uint64_t launch) {
  const std::lock_guard lock(mutex_);
  std::set<size_t> changed;
  begin(staged_, launch, changed);
}

std::optional<uint64_t> SlotValues::full() const {
  const std::lock_guard lock(mutex_);
  return staged_.full() ? std::optional(staged_.launches()) : std::nullopt;
}

std::optional<size_t> SlotValues::stale() const {
  return stale_.empty() ? std::nullopt : std::optional(*stale_.begin());
}

std::vector<at::Tensor> SlotValues::take_retired() {
  const std::lock_guard lock(mutex_);
  return std::exchange(retired_, {});
}

std::vector<c10::Storage> SlotValues::take_replaced() {
  const std::lock_guard lock(mutex_);
  std::vector<c10::Storage> replaced = std::exchange(replaced_, {});
  std::erase_if(replaced, [this](const c10::Storage& storage) { return inputs_.has(storage); });
  return replaced;
}

}  // namespace bringup::torch_ext::graphs
