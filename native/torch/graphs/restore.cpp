#include "torch/graphs/restore.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "engine/util/forever.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
namespace {

// Which capture puts a storage back.
struct Owners {
  std::mutex mutex;
  std::unordered_map<const c10::StorageImpl*, const Restorer*> of;
};

Owners& owners() { return forever<Owners>(); }

}  // namespace

bool Restorer::remember(const c10::Storage& storage, at::Tensor copy) {
  const c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
  if (contents_.contains(impl)) return true;
  {
    const std::lock_guard lock(owners().mutex);
    if (owners().of.try_emplace(impl, this).first->second != this) return false;
  }
  if (!copy.defined()) copy = bytes_of(storage).clone();
  contents_.emplace(impl, Content{storage, storage.data(), std::move(copy)});
  return true;
}

void Restorer::end() noexcept {
  const std::lock_guard lock(owners().mutex);
  std::erase_if(owners().of, [this](const auto& entry) { return entry.second == this; });
}

bool Restorer::any_remembers(const c10::Storage& storage) {
  const std::lock_guard lock(owners().mutex);
  return owners().of.contains(storage.unsafeGetStorageImpl());
}

void Restorer::restore() const {
  for (const auto& [impl, content] : contents_) {
    // A storage that an operator resized keeps what fits.
    const auto bytes = std::min<int64_t>(content.copy.numel(), content.storage.nbytes());
    bytes_of(content.storage).narrow(0, 0, bytes).copy_(content.copy.narrow(0, 0, bytes));
  }
}

bool Restorer::moved() const {
  return std::any_of(contents_.begin(), contents_.end(), [](const auto& entry) {
    return entry.second.storage.data() != entry.second.address;
  });
}

std::vector<c10::Storage> Restorer::storages() const {
  std::vector<c10::Storage> all;
  all.reserve(contents_.size());
  for (const auto& [impl, content] : contents_) all.push_back(content.storage);
  return all;
}

}  // namespace bringup::torch_ext::graphs
