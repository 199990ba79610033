#include "torch/devices/row_layout.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <functional>

namespace bringup::torch_ext {
namespace {

struct Dimension {
  int64_t size;
  int64_t source_stride;
  int64_t target_stride;

  bool is_linear() const { return source_stride == 1 && target_stride == 1; }
};
using Dimensions = c10::SmallVector<Dimension, 8>;

// The outermost first, and as few as describe both tensors.
Dimensions joined_dimensions(const at::Tensor& source, const at::Tensor& target) {
  Dimensions all;
  for (int64_t dim = 0; dim < target.dim(); ++dim) {
    if (target.size(dim) != 1) {
      all.push_back({target.size(dim), source.stride(dim), target.stride(dim)});
    }
  }
  std::ranges::stable_sort(all, std::greater(), &Dimension::target_stride);
  Dimensions joined;
  for (const Dimension& inner : all) {
    if (!joined.empty() && joined.back().source_stride == inner.source_stride * inner.size &&
        joined.back().target_stride == inner.target_stride * inner.size) {
      joined.back() = {joined.back().size * inner.size, inner.source_stride, inner.target_stride};
    } else {
      joined.push_back(inner);
    }
  }
  return joined;
}

bool changes_elements(const at::Tensor& source, const at::Tensor& target) {
  return source.dtype() != target.dtype() || source.is_conj() != target.is_conj() ||
         source.is_neg() != target.is_neg();
}

// Whether the spans from first to last row of both have bytes in common.
bool spans_overlap(const at::Tensor& source, const at::Tensor& target, const RowLayout& rows) {
  const auto* from = static_cast<const std::byte*>(source.data_ptr());
  const auto* to = static_cast<const std::byte*>(target.data_ptr());
  return from < to + (rows.height - 1) * rows.target_pitch + rows.width &&
         to < from + (rows.height - 1) * rows.source_pitch + rows.width;
}

}  // namespace

std::optional<RowLayout> RowLayout::of(const at::Tensor& source, const at::Tensor& target) {
  if (changes_elements(source, target) || source.sizes() != target.sizes()) return std::nullopt;
  Dimensions dimensions = joined_dimensions(source, target);
  const size_t itemsize = target.element_size();
  size_t width = itemsize;
  if (!dimensions.empty() && dimensions.back().is_linear()) {
    width *= static_cast<size_t>(dimensions.back().size);
    dimensions.pop_back();
  }
  if (dimensions.empty()) return linear(width);
  if (dimensions.size() > 1) return std::nullopt;
  const Dimension& row = dimensions.front();
  const RowLayout rows{width, static_cast<size_t>(row.size),
                       static_cast<size_t>(row.source_stride) * itemsize,
                       static_cast<size_t>(row.target_stride) * itemsize};
  if (rows.source_pitch < width || rows.target_pitch < width) return std::nullopt;
  if (source.device() == target.device() && spans_overlap(source, target, rows))
    return std::nullopt;
  return rows;
}

}  // namespace bringup::torch_ext
