// Memory from before the capture: what nodes use by its address, and the tensors among it that an
// update may exchange.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace bringup::torch_ext::graphs {

class Inputs {
 public:
  // A node of operator `user` reads or writes the tensor. Its storage is kept alive.
  void use(const at::Tensor& tensor, const std::string& user);
  // A node only reads `value`, a tensor, a list of tensors or None, by this argument: others may
  // take their place. In the order of nodes and arguments.
  void add_slot(size_t node, size_t argument, c10::IValue value);

  // What the argument is now, or null where it is no such value.
  const c10::IValue* slot(size_t node, size_t argument) const;
  // The argument is `value` from now on; returns what nothing here needs any more.
  c10::SmallVector<at::Tensor, 2> replace(size_t node, size_t argument, c10::IValue value,
                                          const std::string& user);
  // Whether a node that read this storage at the capture reads another one now.
  bool is_replaced(const c10::Storage& storage) const;

  // The first storage, in words, that has other memory than nodes use; none when all have theirs.
  std::optional<std::string> moved() const;
  bool any_on_host() const;
  bool has(const c10::Storage& storage) const {
    return positions_.contains(storage.unsafeGetStorageImpl());
  }
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const Memory& memory : memories_) visit(memory.storage);
  }

 private:
  struct Memory {
    c10::Storage storage;
    const void* address;
    std::string what;
    size_t uses;
  };
  struct Slot {
    size_t node;
    size_t argument;
    c10::IValue value;
    // Of each tensor at the capture, its storage and where it begins; compared only.
    c10::SmallVector<std::pair<const void*, const void*>, 1> captured;
  };

  static bool is_replaced(const Slot& slot);
  Slot* find(size_t node, size_t argument);
  std::optional<at::Tensor> release(const c10::Storage& storage);

  std::vector<Memory> memories_;
  std::unordered_map<const c10::StorageImpl*, size_t> positions_;  // of storages in memories_
  std::vector<Slot> slots_;
  size_t replaced_ = 0;  // how many slots are not what they were
};

}  // namespace bringup::torch_ext::graphs
