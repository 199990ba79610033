#include "torch/graphs/inputs.h"

#include <algorithm>
#include <utility>

#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {

void Inputs::use(const at::Tensor& tensor, const std::string& user) {
  const c10::Storage& storage = tensor.storage();
  const auto [known, fresh] =
      positions_.try_emplace(storage.unsafeGetStorageImpl(), memories_.size());
  if (fresh) memories_.push_back({storage, storage.data(), describe(tensor) + " of " + user, 0});
  ++memories_[known->second].uses;
}

void Inputs::add_slot(size_t node, size_t argument, c10::IValue value) {
  Slot slot{node, argument, std::move(value), {}};
  for_each_tensor(slot.value, [&](const at::Tensor& tensor) {
    slot.captured.emplace_back(tensor.storage().data(), address_of(tensor));
  });
  slots_.push_back(std::move(slot));
}

bool Inputs::is_replaced(const Slot& slot) {
  size_t same = 0;
  size_t count = 0;
  for_each_tensor(slot.value, [&](const at::Tensor& tensor) {
    same += count < slot.captured.size() && address_of(tensor) == slot.captured[count].second;
    ++count;
  });
  return same != slot.captured.size() || count != slot.captured.size();
}

Inputs::Slot* Inputs::find(size_t node, size_t argument) {
  const auto place = std::pair(node, argument);
  const auto found = std::ranges::lower_bound(
      slots_, place, {}, [](const Slot& slot) { return std::pair(slot.node, slot.argument); });
  const bool there = found != slots_.end() && found->node == node && found->argument == argument;
  return there ? &*found : nullptr;
}

const c10::IValue* Inputs::slot(size_t node, size_t argument) const {
  const Slot* found = const_cast<Inputs*>(this)->find(node, argument);
  return found == nullptr ? nullptr : &found->value;
}

c10::SmallVector<at::Tensor, 2> Inputs::replace(size_t node, size_t argument, c10::IValue value,
                                                const std::string& user) {
  Slot& slot = *find(node, argument);
  c10::SmallVector<at::Tensor, 2> unused;
  replaced_ -= is_replaced(slot);
  for_each_tensor(value, [&](const at::Tensor& tensor) { use(tensor, user); });
  for_each_tensor(slot.value, [&](const at::Tensor& tensor) {
    if (auto memory = release(tensor.storage())) unused.push_back(std::move(*memory));
    unused.push_back(tensor);
  });
  slot.value = std::move(value);
  replaced_ += is_replaced(slot);
  return unused;
}

// All memory of the storage, where this was its last use.
std::optional<at::Tensor> Inputs::release(const c10::Storage& storage) {
  const auto known = positions_.find(storage.unsafeGetStorageImpl());
  const size_t position = known->second;
  if (--memories_[position].uses > 0) return std::nullopt;
  positions_.erase(known);
  std::swap(memories_[position], memories_.back());
  at::Tensor memory = bytes_of(memories_.back().storage);
  memories_.pop_back();
  if (position < memories_.size()) {
    positions_[memories_[position].storage.unsafeGetStorageImpl()] = position;
  }
  return memory;
}

bool Inputs::is_replaced(const c10::Storage& storage) const {
  if (replaced_ == 0) return false;
  return std::ranges::any_of(slots_, [&](const Slot& slot) {
    const auto of_storage = [&](const auto& tensor) { return tensor.first == storage.data(); };
    return std::ranges::any_of(slot.captured, of_storage) && is_replaced(slot);
  });
}

std::optional<std::string> Inputs::moved() const {
  for (const Memory& memory : memories_) {
    if (memory.storage.data() != memory.address) return memory.what;
  }
  return std::nullopt;
}

bool Inputs::any_on_host() const {
  return std::ranges::any_of(memories_,
                             [](const Memory& memory) { return memory.storage.device().is_cpu(); });
}

}  // namespace bringup::torch_ext::graphs
