#include "torch/common/values.h"

#include <c10/core/ScalarType.h>

namespace bringup::torch_ext {

std::string dtype_text(at::ScalarType dtype) {
  return "torch." + std::string(c10::getDtypeNames(dtype).first);
}

bool overlap(const at::Tensor& left, uintptr_t left_base, const at::Tensor& right,
             uintptr_t right_base) {
  const auto bytes = [](const at::Tensor& tensor, uintptr_t base) {
    int64_t last = tensor.storage_offset();
    for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    const auto at = [&](int64_t element) {
      return base + static_cast<uintptr_t>(element) * tensor.element_size();
    };
    return std::pair(at(tensor.storage_offset()), at(last + 1));
  };
  if (left.numel() == 0 || right.numel() == 0) return false;
  const auto [left_begin, left_end] = bytes(left, left_base);
  const auto [right_begin, right_end] = bytes(right, right_base);
  return left_begin < right_end && right_begin < left_end;
}

bool overlap(const at::Tensor& left, const at::Tensor& right) {
  if (!left.defined() || !right.defined() || !left.is_alias_of(right)) return false;
  return overlap(left, 0, right, 0);
}

}  // namespace bringup::torch_ext
