// How two tensors lie in memory for a copy between them that a driver can do by itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>

namespace bringup::torch_ext {

// `height` rows of `width` bytes; rows begin `source_pitch` and `target_pitch` bytes apart. One row
// is a linear range.
struct RowLayout {
  size_t width;
  size_t height;
  size_t source_pitch;
  size_t target_pitch;

  size_t bytes() const { return width * height; }

  static RowLayout linear(size_t bytes) { return {bytes, 1, bytes, bytes}; }

  // None where the elements have to be changed on the way, do not lie in rows, or where rows of one
  // tensor overlap each other or those of the other.
  static std::optional<RowLayout> of(const at::Tensor& source, const at::Tensor& target);
};

}  // namespace bringup::torch_ext
