// What a capture might change behind the recorder's back: the content of tensors that the captured
// code can reach, before the run and after it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "torch/graphs/restore.h"
#include "torch/graphs/watch.h"

namespace bringup::torch_ext::graphs {

class Contents {
 public:
  // Remembers the content of the tensor's storage unless it did so before or there are more than
  // `most` bytes; `name` is the user's for the tensor. Copies the first 64 MiB in all, hashes the
  // rest. Returns how many bytes it read.
  size_t remember(const at::Tensor& tensor, std::string name, size_t most);

  // A tensor of which no operator of a capture wrote what it has now, "'cache' (float32[4])"; none
  // when there is none. What operators outside of captures wrote, in other threads, counts where
  // one of this capture may have done so. `eager`, or null: what eager calls may have written, of
  // which no schema tells, is put back by it.
  std::optional<std::string> changed(bool may_be_own, Restorer* eager) const;

  // Puts back what was copied, but for what a capture puts back or operators outside wrote.
  void restore() const;

  // Gives the watch the user's names of the tensors.
  void name_tensors(Watch& watch) const;

 private:
  struct Content {
    c10::Storage storage;
    std::string what;
    c10::VariableVersion versions;  // operators count what they write, other code does not
    uint32_t version = 0;
    at::Tensor copy;  // undefined when only hashed
    uint64_t hash = 0;
  };

  static bool is_same(const Content& content);
  static bool written_by_operators(const Content& content);

  std::unordered_map<const c10::StorageImpl*, Content> contents_;
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
  size_t copied_ = 0;
};

}  // namespace bringup::torch_ext::graphs
