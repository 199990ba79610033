// Products of int8 where the processor multiplies four at a time (AVX512-VNNI): operands lie in
// words of four along the depth, and the sums are the same whole numbers as everywhere else. The
// instruction wants one factor without a sign: the right operand's bytes have kByteZero added, and
// what that adds to a row's sums is taken off again.
#pragma once

#include "operand.h"

namespace bringup_kernels {

#if defined(__AVX512VNNI__)
constexpr bool kMultipliesBytes = true;
#else
constexpr bool kMultipliesBytes = false;
#endif
constexpr int64_t kInWord = 4;
constexpr int32_t kByteZero = 128;
constexpr uint32_t kByteZeros = 0x80808080u;  // flips the upper bit of each byte: adds kByteZero

inline Mask<float> add_products_of_bytes(Mask<float> sum, Mask<float> of_no_sign, Mask<float> b) {
#if defined(__AVX512VNNI__) && defined(__clang__)
  return __builtin_ia32_vpdpbusd512(sum, of_no_sign, b);
#elif defined(__AVX512VNNI__)
  return __builtin_ia32_vpdpbusd_v16si(sum, of_no_sign, b);
#else
  for (int shift = 0; shift < 32; shift += 8) {
    sum += (of_no_sign >> shift & 255) * (b << (24 - shift) >> 24);
  }
  return sum;
#endif
}

// kRows rows of words, `stride` apart, times one panel; `offsets`: what is taken off each row's.
template <int kRows, int64_t kStride>
KERNEL_NOINLINE void product_tile_of_bytes(const int32_t* a, const int32_t* panel, int64_t words,
                                           int32_t* sums, int64_t sum_stride, bool first,
                                           const int32_t* offsets) {
  constexpr int64_t kWidth = 2 * kLanes<float>;
  Mask<float> tile[kRows][2] = {};
  for (int64_t i = 0; i < words; ++i) {
    const auto left_half = load_bits<Mask<float>>(panel + i * kWidth);
    const auto right_half = load_bits<Mask<float>>(panel + i * kWidth + kLanes<float>);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const Mask<float> value = Mask<float>{} + a[r * kStride + i];
      tile[r][0] = add_products_of_bytes(tile[r][0], left_half, value);
      tile[r][1] = add_products_of_bytes(tile[r][1], right_half, value);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    for (int half = 0; half < 2; ++half) {
      int32_t* sum = sums + r * sum_stride + half * kLanes<float>;
      Mask<float> value = tile[r][half] - offsets[r];
      if (!first) value += load_bits<Mask<float>>(sum);
      __builtin_memcpy(sum, &value, sizeof value);
    }
  }
}

// As pack_rows, in words, whose bytes behind the depth are zeros; and each row's offset.
template <class Matrix>
KERNEL_NOINLINE void pack_rows_of_bytes(int32_t* to, int64_t stride, int32_t* offsets,
                                        const Matrix& from, int64_t row, int64_t rows,
                                        int64_t first, int64_t depth) {
  for (int64_t r = 0; r < rows; ++r) {
    auto* bytes = reinterpret_cast<int8_t*>(to + r * stride);
    __builtin_memset(bytes + depth, 0, static_cast<size_t>(round_up(depth, 64) - depth));
    if constexpr (Matrix::layout == Layout::kRow) {
      __builtin_memcpy(bytes, from.at(row + r, first), static_cast<size_t>(depth));
    } else {
      for (int64_t i = 0; i < depth; ++i) bytes[i] = *from.at(row + r, first + i);
    }
    Mask<float> sum{};
    for (int64_t i = 0; i < depth; i += kLanes<float>) {
      sum += widened(load_bits<Bytes>(bytes + i));
    }
    offsets[r] = 0;
    for (int lane = 0; lane < kLanes<float>; ++lane) offsets[r] += sum[lane] * kByteZero;
  }
}

// As pack_panel, [depth / 4, kWidth] words; what is behind the depth meets zeros of the left.
template <int64_t kWidth, class Matrix>
KERNEL_NOINLINE void pack_panel_of_bytes(int32_t* to, const Matrix& from, int64_t first,
                                         int64_t depth, int64_t column, int64_t columns) {
  const int64_t words = (depth + kInWord - 1) / kInWord;
  if (columns < kWidth) __builtin_memset(to, 0, static_cast<size_t>(words * kWidth) * sizeof *to);
  int64_t i = 0;
  if constexpr (Matrix::layout == Layout::kColumn) {
    constexpr int64_t kLanesOfWords = kLanes<float>;
    for (; columns == kWidth && (i + kLanesOfWords) * kInWord <= depth; i += kLanesOfWords) {
      for (int64_t j = 0; j < kWidth; j += kLanesOfWords) {
        Vec<float> square[kLanes<float>];
#pragma GCC unroll 16
        for (int64_t c = 0; c < kLanesOfWords; ++c) {
          square[c] = load_bits<Vec<float>>(from.at(first + i * kInWord, column + j + c));
        }
        transpose_square<1, float>(square);
#pragma GCC unroll 16
        for (int64_t w = 0; w < kLanesOfWords; ++w) {
          const Words word = reinterpret<Words>(square[w]) ^ kByteZeros;
          __builtin_memcpy(to + (i + w) * kWidth + j, &word, sizeof word);
        }
      }
    }
  }
  for (to += i * kWidth; i < words; ++i, to += kWidth) {
    const int64_t at = first + i * kInWord;
    const int64_t some = smaller(kInWord, depth - i * kInWord);
    if (Matrix::layout == Layout::kRow && columns == kWidth) {
      for (int64_t j = 0; j < kWidth; j += kLanes<float>) {
        Words word{};
        for (int64_t p = 0; p < some; ++p) {
          const auto row = load_bits<UnsignedBytes>(from.at(at + p, column + j));
          word |= widened(row) << static_cast<uint32_t>(8 * p);
        }
        word ^= kByteZeros;
        __builtin_memcpy(to + j, &word, sizeof word);
      }
      continue;
    }
    for (int64_t j = 0; j < columns; ++j) {
      uint32_t word = 0;
      if (Matrix::layout == Layout::kColumn) {
        __builtin_memcpy(&word, from.at(at, column + j), static_cast<size_t>(some));
      } else {
        for (int64_t p = 0; p < some; ++p) {
          word |= static_cast<uint32_t>(static_cast<uint8_t>(*from.at(at + p, column + j)))
                  << (8 * p);
        }
      }
      to[j] = static_cast<int32_t>(word ^ kByteZeros);
    }
  }
}

}  // namespace bringup_kernels
