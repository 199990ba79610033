// An operand of a product: a matrix in one of four layouts, and how blocks of it are laid out for
// the tile loop. The layout is a template argument, so a variant contains the one copy loop it
// needs.
#pragma once

#include "bringup/params.h"
#include "elements.h"

namespace bringup_kernels {

enum class Layout {
  kRow = BRINGUP_LAYOUT_ROW,          // rows are contiguous, and may be any distance apart
  kColumn = BRINGUP_LAYOUT_COLUMN,    // columns are contiguous: a transposed view
  kStrided = BRINGUP_LAYOUT_STRIDED,  // neither
  // Blocks of 16 x 16, row-major inside; the blocks of a column of blocks follow each other.
  kNz = BRINGUP_LAYOUT_NZ,
};

// What the transposed matrix is, nz excepted.
constexpr Layout transposed(Layout layout) {
  return layout == Layout::kRow      ? Layout::kColumn
         : layout == Layout::kColumn ? Layout::kRow
                                     : layout;
}

constexpr int64_t kFractal = 16;  // rows and columns of an nz block

constexpr int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }
constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// kNz: row_stride is the distance of two columns of blocks in elements; column_stride is not used.
template <class ElementType, Layout kLayout>
struct Operand {
  using Element = ElementType;
  static constexpr Layout layout = kLayout;
  static constexpr bool kScaled = false;  // see scales.h

  const Element* data;
  int64_t row_stride;
  int64_t column_stride;

  const Element* at(int64_t row, int64_t column) const {
    if constexpr (kLayout == Layout::kRow) {
      return data + row * row_stride + column;
    } else if constexpr (kLayout == Layout::kColumn) {
      return data + row + column * column_stride;
    } else if constexpr (kLayout == Layout::kStrided) {
      return data + row * row_stride + column * column_stride;
    } else {
      return data + column / kFractal * row_stride + row * kFractal + column % kFractal;
    }
  }
};

// Copies row `row`, columns [column, column + count), one element after the other.
template <class T, class Matrix>
inline void copy_row(T* to, const Matrix& from, int64_t row, int64_t column, int64_t count) {
  if constexpr (Matrix::layout == Layout::kRow) {
    copy_as(to, from.at(row, column), count);
  } else if constexpr (Matrix::layout == Layout::kNz) {
    while (count > 0) {
      const int64_t run = smaller(count, kFractal - column % kFractal);
      copy_as(to, from.at(row, column), run);
      to += run;
      column += run;
      count -= run;
    }
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(*from.at(row, column + i));
  }
}

template <int... kLane>
struct LaneList {};
template <int kCount>
struct LanesOf;
template <>
struct LanesOf<2> : LaneList<0, 1> {};
template <>
struct LanesOf<4> : LaneList<0, 1, 2, 3> {};
template <>
struct LanesOf<8> : LaneList<0, 1, 2, 3, 4, 5, 6, 7> {};
template <>
struct LanesOf<16> : LaneList<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15> {};

// Swaps the lanes of `a` whose number has the bit kBit with those of `b` that lack it.
template <int kBit, class T, int... kLane>
inline void exchange(Vec<T>& a, Vec<T>& b, LaneList<kLane...>) {
  constexpr int kCount = sizeof...(kLane);
  const Vec<T> first =
      __builtin_shufflevector(a, b, ((kLane & kBit) == 0 ? kLane : kCount + kLane - kBit)...);
  b = __builtin_shufflevector(a, b, ((kLane & kBit) == 0 ? kLane + kBit : kCount + kLane)...);
  a = first;
}

// Transposes a square of kLanes<T> vectors, bit by bit of row and lane numbers (Eklundh: A Fast
// Computer Method for Matrix Transposing, 1972).
template <int kBit, class T>
inline void transpose_square(Vec<T>* rows) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<T>; ++i) {
    if ((i & kBit) == 0) exchange<kBit, T>(rows[i], rows[i + kBit], LanesOf<kLanes<T>>());
  }
  if constexpr (2 * kBit < kLanes<T>) transpose_square<2 * kBit, T>(rows);
}

// to[i, j] = from[j, i] for i < rows, j < columns; both are row-major, `stride` elements apart.
template <class T, class Element>
KERNEL_NOINLINE void copy_transposed(T* to, int64_t to_stride, const Element* from,
                                     int64_t from_stride, int64_t rows, int64_t columns) {
  constexpr int64_t kStep = kLanes<T>;
  for (int64_t i = 0; i < rows; i += kStep) {
    for (int64_t j = 0; j < columns; j += kStep) {
      const Element* source = from + j * from_stride + i;
      T* target = to + i * to_stride + j;
      const int64_t height = smaller(rows - i, kStep);
      const int64_t width = smaller(columns - j, kStep);
      if (height == kStep && width == kStep) {
        Vec<T> square[kLanes<T>];
#pragma GCC unroll 16
        for (int64_t r = 0; r < kStep; ++r) square[r] = load_as<T>(source + r * from_stride);
        transpose_square<1, T>(square);
#pragma GCC unroll 16
        for (int64_t r = 0; r < kStep; ++r) store(target + r * to_stride, square[r]);
      } else {
        for (int64_t c = 0; c < width; ++c) {
          for (int64_t r = 0; r < height; ++r) {
            target[r * to_stride + c] = static_cast<T>(source[c * from_stride + r]);
          }
        }
      }
    }
  }
}

// Rows [row, row + rows) of a left operand by columns [first, first + depth), row-major, `stride`
// elements apart.
template <class T, class Matrix>
KERNEL_NOINLINE void pack_rows(T* to, int64_t stride, const Matrix& from, int64_t row, int64_t rows,
                               int64_t first, int64_t depth) {
  if constexpr (Matrix::layout == Layout::kColumn) {
    copy_transposed(to, stride, from.at(row, first), from.column_stride, rows, depth);
  } else {
    for (int64_t r = 0; r < rows; ++r) copy_row(to + r * stride, from, row + r, first, depth);
  }
}

// Rows [first, first + depth) of a right operand by columns [column, column + columns) as one panel
// [depth, kWidth]; columns behind the last are zeros.
template <int64_t kWidth, class T, class Matrix>
inline void pack_panel(T* to, const Matrix& from, int64_t first, int64_t depth, int64_t column,
                       int64_t columns) {
  if (columns < kWidth) {
    __builtin_memset(to, 0, static_cast<size_t>(depth * kWidth) * sizeof(T));
  }
  if constexpr (Matrix::layout == Layout::kColumn) {
    copy_transposed(to, kWidth, from.at(first, column), from.column_stride, depth, columns);
  } else {
    for (int64_t i = 0; i < depth; ++i) {
      copy_row(to + i * kWidth, from, first + i, column, columns < kWidth ? columns : kWidth);
    }
  }
}

}  // namespace bringup_kernels
