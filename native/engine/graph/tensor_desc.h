// What a value looks like, and the data of a constant: by value, as the host describes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/util/strings.h"

namespace bringup::engine {

// One size or stride: a number, or the text of a symbolic expression such as `s0` or `2*s0`.
struct Dim {
  int64_t number = 0;
  StringId symbol = kNoString;
  bool is_static() const { return symbol == kNoString; }
  friend bool operator==(const Dim&, const Dim&) = default;
};

struct TensorDesc {
  std::vector<Dim> sizes;
  std::vector<Dim> strides;        // in elements; empty when the layout is not strided
  StringId dtype = kEmptyString;   // "float32"
  StringId device = kEmptyString;  // "cpu", "npu:0"
  friend bool operator==(const TensorDesc&, const TensorDesc&) = default;
};

struct ConstantData {
  StringId dtype = kEmptyString;
  std::vector<int64_t> sizes;
  std::span<const std::byte> bytes;   // row-major, in host memory
  std::shared_ptr<const void> owner;  // keeps `bytes` alive
};

}  // namespace bringup::engine
