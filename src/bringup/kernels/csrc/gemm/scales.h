// Scales of blocks of an operand: one for a tensor, a row, a column, a group of the depth, or a
// block of rows or columns by a group. Where they differ along the depth the operand is multiplied
// as it is laid out for the tile loop, otherwise the sums are.
#pragma once

#include "operand.h"

namespace bringup_kernels {

// A byte as a scale is the exponent of a power of two.
template <class Element>
struct ScaleElement {
  using type = Element;
};
template <>
struct ScaleElement<uint8_t> {
  using type = formats::float8_e8m0fnu;
};
template <class Element>
using scale_element = typename ScaleElement<Element>::type;

constexpr int64_t kMicroGroup = 32;

// A scale for each block[0] x block[1] elements of a matrix, or of each matrix of a batch.
template <class Element>
struct Scales {
  const Element* data;  // null where there is none, of a depth of 0
  int64_t block[2];
  int64_t
      stride[3];  // from a matrix, a row of blocks, a column of blocks to the next; 0: one for all
  int64_t first_row;  // of the matrix, where the blocks go on behind it

  // False for a tensor whose sizes do not fit.
  bool read(const void* arg, int64_t items, int64_t rows, int64_t columns, int64_t block_rows,
            int64_t block_columns) {
    const DLTensor& t = bringup::tensor(arg);
    const bool any = bringup::numel(t) > 0;
    data = any ? static_cast<const Element*>(t.data) : nullptr;
    block[0] = block_rows;
    block[1] = block_columns;
    if (t.ndim != 3 || block_rows < 1 || block_columns < 1) return false;
    const int64_t blocks[3] = {items, (rows + block_rows - 1) / block_rows,
                               (columns + block_columns - 1) / block_columns};
    for (int d = 0; d < 3; ++d) {
      stride[d] = t.shape[d] == 1 || !any ? 0 : t.strides[d];
      // The groups of microscaling formats may be an even number, as hardware has them.
      const bool padded =
          d > 0 && block[d - 1] == kMicroGroup && t.shape[d] == round_up(blocks[d], 2);
      if (t.shape[d] != 1 && t.shape[d] != blocks[d] && !padded) return false;
    }
    return true;
  }

  void select(int64_t item, int64_t row) {
    data += item * stride[0];
    first_row = row;
  }

  float at(int64_t row, int64_t column) const {
    if (data == nullptr) return 1.0f;
    return static_cast<float>(
        data[(first_row + row) / block[0] * stride[1] + column / block[1] * stride[2]]);
  }
  float of_row(int64_t row) const { return at(row, 0); }

  Vec<float> of_columns(int64_t column, int64_t count) const {
    if (stride[2] == 0 || column / block[1] == (column + count - 1) / block[1]) {
      return splat(at(0, column));
    }
    if (block[1] == 1) {
      const int64_t row = first_row / block[0] * stride[1];
      return load_some<float>(data + row + column * stride[2], stride[2], count);
    }
    Vec<float> value{};
    for (int64_t i = 0; i < count; ++i) value[i] = at(0, column + i);
    return value;
  }
};

template <int kNone>
struct NoScales {
  bool read(const void*, int64_t, int64_t, int64_t, int64_t, int64_t) { return true; }
  void select(int64_t, int64_t) {}
  float of_row(int64_t) const { return kNone; }
  float of_columns(int64_t, int64_t) const { return kNone; }
};

// A tensor that is None.
template <>
struct Scales<void> : NoScales<1> {};

// An operand with its scales.
template <class Matrix, class Element, bool kDepth>
struct Scaled : Matrix {
  static constexpr bool kScaled = kDepth;
  static constexpr bool kOfSums = !kDepth;

  Scales<Element> scales;
};

// Multiplies rows [row, row + rows) of a left operand at depth [first, first + depth).
template <class T, class Matrix>
KERNEL_NOINLINE void scale_rows(T* to, int64_t stride, const Matrix& matrix, int64_t row,
                                int64_t rows, int64_t first, int64_t depth) {
  const int64_t step = matrix.scales.block[1];
  for (int64_t r = 0; r < rows; ++r, to += stride) {
    for (int64_t i = 0; i < depth;) {
      const int64_t end = smaller(depth, ((first + i) / step + 1) * step - first);
      const T scale = matrix.scales.at(row + r, first + i);
      for (; i + kLanes<T> <= end; i += kLanes<T>) store(to + i, load(to + i) * scale);
      for (; i < end; ++i) to[i] *= scale;
    }
  }
}

// Multiplies a panel of a right operand's columns [column, column + columns) at the same depth.
template <int64_t kWidth, class T, class Matrix>
KERNEL_NOINLINE void scale_panel(T* panel, const Matrix& matrix, int64_t first, int64_t depth,
                                 int64_t column, int64_t columns) {
  const int64_t step = matrix.scales.block[0];
  T scales[kWidth] = {};
  for (int64_t i = 0; i < depth;) {
    const int64_t end = smaller(depth, ((first + i) / step + 1) * step - first);
    for (int64_t j = 0; j < columns; ++j) scales[j] = matrix.scales.at(first + i, column + j);
    for (; i < end; ++i) {
      for (int64_t j = 0; j < kWidth; j += kLanes<T>) {
        T* to = panel + i * kWidth + j;
        store(to, load(to) * load(scales + j));
      }
    }
  }
}

}  // namespace bringup_kernels
