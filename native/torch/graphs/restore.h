// What a capture changes and puts back: the content of tensors that predate it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <unordered_map>
#include <vector>

namespace bringup::torch_ext::graphs {

class Restorer {
 public:
  Restorer() = default;
  ~Restorer() { end(); }
  Restorer(const Restorer&) = delete;
  Restorer& operator=(const Restorer&) = delete;

  // Copies the storage's content unless it was done before. False where a capture in another thread
  // has done so and is under way: both would put back what the other has written. `copy`: what it
  // was, if it has been copied.
  [[nodiscard]] bool remember(const c10::Storage& storage, at::Tensor copy = {});
  // Nothing is put back any more.
  void end() noexcept;
  // Whether a capture will put the storage's content back.
  static bool any_remembers(const c10::Storage& storage);

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
