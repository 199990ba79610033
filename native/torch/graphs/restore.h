// What a capture changes and puts back: the content of tensors that predate it, and random
// generators.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <unordered_map>
#include <vector>

namespace bringup::torch_ext::graphs {

class Restorer {
 public:
  // Copies the storage's content unless it was done before.
  void remember(const c10::Storage& storage);
  // The generator's state, unless it was remembered before.
  void remember(at::Generator generator);

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
  struct State {
    at::Generator generator;
    at::Tensor state;
  };

  std::unordered_map<const c10::StorageImpl*, Content> contents_;
  std::vector<State> states_;
};

}  // namespace bringup::torch_ext::graphs
