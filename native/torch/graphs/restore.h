// What a capture changes and puts back: the content of tensors that predate it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <unordered_map>
#include <vector>

namespace bringup::torch_ext::graphs {

class Restorer {
 public:
  // Copies the storage's content unless it was done before.
  void remember(const c10::Storage& storage);

  bool remembers(const c10::Storage& storage) const {
    return contents_.contains(storage.unsafeGetStorageImpl());
  }

  // Puts everything back as it was when it was remembered.
  void restore() const;

  // Whether a remembered storage has other memory now.
  bool moved() const;

  // Every remembered storage, for comparing what runs leave in them.
  std::vector<c10::Storage> storages() const;

 private:
  struct Content {
    c10::Storage storage;
    const void* address;
    at::Tensor copy;
  };

  std::unordered_map<const c10::StorageImpl*, Content> contents_;
};

}  // namespace bringup::torch_ext::graphs
