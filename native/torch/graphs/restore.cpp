#include "torch/graphs/restore.h"

#include <algorithm>

#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {

void Restorer::remember(const c10::Storage& storage) {
  const c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
  if (contents_.contains(impl)) return;
  contents_.emplace(impl, Content{storage, storage.data(), bytes_of(storage).clone()});
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
