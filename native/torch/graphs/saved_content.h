// What tensors hold at one time, to compare and to put back, bit for bit.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace bringup::torch_ext::graphs {

// The elements of strided tensors of the host, not what lies between them. It keeps no memory:
// the tensors have to.
class SavedContent {
 public:
  enum class Part : uint8_t {
    kAll,
    kSample,  // of a large tensor pieces from its first to its last element
  };

  SavedContent(c10::ArrayRef<at::Tensor> tensors, Part part);

  // Whether the tensors hold it now.
  bool is_there() const;
  void put_back() const;
  // Writes other bytes in its place.
  void spoil() const;

 private:
  struct Span {
    char* data;
    size_t bytes;
  };

  void add(const at::Tensor& tensor, Part part);
  void add(Span span);
  template <class Visit>
  void for_each(Visit&& visit) const;

  c10::SmallVector<Span, 1> spans_;
  c10::SmallVector<char, 128> bytes_;  // of all spans
};

}  // namespace bringup::torch_ext::graphs
