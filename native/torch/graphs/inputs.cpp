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

void Inputs::add_slot(size_t node, size_t argument, at::Tensor tensor) {
  const void* storage = tensor.storage().data();
  const void* address = address_of(tensor);
  slots_.push_back({node, argument, std::move(tensor), storage, address});
}

Inputs::Slot* Inputs::find(size_t node, size_t argument) {
  const auto place = std::pair(node, argument);
  const auto found = std::ranges::lower_bound(
      slots_, place, {}, [](const Slot& slot) { return std::pair(slot.node, slot.argument); });
  const bool there = found != slots_.end() && found->node == node && found->argument == argument;
  return there ? &*found : nullptr;
}

const at::Tensor* Inputs::slot(size_t node, size_t argument) const {
  const Slot* found = const_cast<Inputs*>(this)->find(node, argument);
  return found == nullptr ? nullptr : &found->tensor;
}

c10::SmallVector<at::Tensor, 2> Inputs::replace(size_t node, size_t argument,
                                                const at::Tensor& tensor, const std::string& user) {
  Slot& slot = *find(node, argument);
  const auto is_replaced = [&] { return address_of(slot.tensor) != slot.captured; };
  c10::SmallVector<at::Tensor, 2> unused;
  replaced_ -= is_replaced();
  use(tensor, user);
  if (auto memory = release(slot.tensor.storage())) unused.push_back(std::move(*memory));
  unused.push_back(std::exchange(slot.tensor, tensor));
  replaced_ += is_replaced();
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
    return slot.captured_storage == storage.data() && address_of(slot.tensor) != slot.captured;
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
