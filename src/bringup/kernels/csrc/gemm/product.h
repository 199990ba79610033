// The blocked matrix product that the GEMM family shares.
//
// A task is TILE_M rows by TILE_N columns of one product. For each TILE_K of depth, the left
// operand's rows are laid out one after the other and the right operand's columns in panels; tiles
// of kTileRows x kPanelWidth are held in registers over the depth, and sums of tiles in a buffer of
// the task (Goto, van de Geijn: Anatomy of High-Performance Matrix Multiplication, 2008; van Zee,
// van de Geijn: BLIS, 2015). What follows the sums (bias, scale, activation, rounding) is the
// caller's, row by row.
#pragma once

#include "bytes.h"
#include "scales.h"

#ifndef TILE_M
#define TILE_M 96
#endif
#ifndef TILE_N
#define TILE_N 512
#endif
#ifndef TILE_K
#define TILE_K 256
#endif

namespace bringup_kernels {

constexpr int64_t kProductTileRows = kVectorRegisters == 32 ? 12 : 6;
constexpr int64_t kRowsOfTask = round_up(TILE_M, kProductTileRows);
constexpr int64_t kColumnsOfTask = TILE_N;
constexpr int64_t kDepthOfBlock = TILE_K;
constexpr int64_t kRowStride = kDepthOfBlock + 16;   // no two rows of a tile in one set of a cache
constexpr int64_t kSharedBytes = int64_t{16} << 20;  // of right operands laid out at one time
constexpr int64_t kWorthATask = 262144;              // multiplications

static_assert(TILE_K <= 1024, "the sum of a block of int8_t products must be exact in float");
static_assert(TILE_K % kInWord == 0, "blocks of the depth are whole words");
static_assert(TILE_M > 0 && TILE_N % 64 == 0 && TILE_N > 0 && TILE_K > 0, "see the tile loop");

template <class T>
constexpr int64_t kPanelWidth = 2 * kLanes<T>;

template <class T>
inline Vec<T> partial(Vec<T> tile, const T* sum, bool first) {
  return first ? tile : tile + load(sum);
}
inline Mask<float> partial(Vec<float> tile, const int32_t* sum, bool first) {
  const auto whole = __builtin_convertvector(tile, Mask<float>);
  return first ? whole : whole + load_bits<Mask<float>>(sum);
}

// kRows rows of `a` times one panel, stored in or added to `sums`.
template <int kRows, class T, class Sum>
KERNEL_NOINLINE void product_tile(const T* a, const T* panel, int64_t depth, Sum* sums,
                                  int64_t sum_stride, bool first, const int32_t*) {
  Vec<T> tile[kRows][2] = {};
  for (int64_t i = 0; i < depth; ++i) {
    const Vec<T> left_half = load(panel + i * kPanelWidth<T>);
    const Vec<T> right_half = load(panel + i * kPanelWidth<T> + kLanes<T>);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const T value = a[r * kRowStride + i];
      tile[r][0] = multiply_add(value, left_half, tile[r][0]);
      tile[r][1] = multiply_add(value, right_half, tile[r][1]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    for (int half = 0; half < 2; ++half) {
      Sum* sum = sums + r * sum_stride + half * kLanes<T>;
      const auto value = partial(tile[r][half], sum, first);
      __builtin_memcpy(sum, &value, sizeof value);
    }
  }
}

// All rows of a task times one panel. Rows up to the next whole tile are there, as zeros.
template <int kRows>
inline void product_tile(const int32_t* a, const int32_t* panel, int64_t words, int32_t* sums,
                         int64_t sum_stride, bool first, const int32_t* offsets) {
  product_tile_of_bytes<kRows, kRowStride>(a, panel, words, sums, sum_stride, first, offsets);
}

template <class T, class Sum>
inline void product_column(const T* a, int64_t rows, const T* panel, int64_t depth, Sum* sums,
                           int64_t sum_stride, bool first, const int32_t* offsets) {
  constexpr int kTile = static_cast<int>(kProductTileRows);
  constexpr int kPart = 4;
  int64_t row = 0;
  for (; rows - row > kTile - kPart; row += kTile) {
    product_tile<kTile>(a + row * kRowStride, panel, depth, sums + row * sum_stride, sum_stride,
                        first, offsets + row);
  }
  for (; row < rows; row += kPart) {
    product_tile<kPart>(a + row * kRowStride, panel, depth, sums + row * sum_stride, sum_stride,
                        first, offsets + row);
  }
}

// What the partial sums of a product are kept in: whole numbers only where nothing scales them.
template <class Left, class Right, bool kScaled = Left::kScaled || Right::kScaled>
struct SumOfProduct {
  using type = PartialSum<typename Left::Element, typename Right::Element>;
};
template <class Left, class Right>
struct SumOfProduct<Left, Right, true> {
  using type = Accumulator<typename Left::Element, typename Right::Element>;
};
template <class Left, class Right>
using SumOf = typename SumOfProduct<Left, Right>::type;
template <class Sum>
constexpr bool is_whole = false;
template <>
constexpr bool is_whole<int32_t> = true;

// What operands are laid out as: what they are computed in, or words of bytes.
template <class T, bool kBytes>
struct LaidOutAs {
  using type = T;
  static constexpr int64_t depth(int64_t count) { return count; }
};
template <class T>
struct LaidOutAs<T, true> {
  using type = int32_t;
  static constexpr int64_t depth(int64_t count) { return (count + kInWord - 1) / kInWord; }
};

// One product of a batch: left [rows, depth] times right [depth, columns].
template <class Left, class Right>
struct Product {
  Left left;
  Right right;
  int64_t rows;
  int64_t columns;
  int64_t depth;
};

// The right operand's columns [column, column + width) at depth [first, first + depth), as panels.
template <class T, class Packed, class Right>
KERNEL_NOINLINE void pack_block(Packed* to, const Right& right, int64_t first, int64_t depth,
                                int64_t column, int64_t columns) {
  constexpr int64_t kWidth = kPanelWidth<T>;
  for (int64_t j = 0; j < columns; j += kWidth) {
    const int64_t width = smaller(columns - j, kWidth);
    if constexpr (is_whole<Packed>) {
      const int64_t words = LaidOutAs<T, true>::depth(depth);
      pack_panel_of_bytes<kWidth>(to + j * words, right, first, depth, column + j, width);
    } else {
      pack_panel<kWidth>(to + j * depth, right, first, depth, column + j, width);
      if constexpr (Right::kScaled) {
        scale_panel<kWidth>(to + j * depth, right, first, depth, column + j, width);
      }
    }
  }
}

// A batch of products of at most the rows and the depth of `largest`, with its columns.
// `product_at(item)` gives one of them, `finish(item, row, column, sums, count)` writes `count`
// results of one row.
template <class Left, class Right, class ProductAt, class Finish>
class Batch {
  using T = Accumulator<typename Left::Element, typename Right::Element>;
  using Sum = SumOf<Left, Right>;
  using LaidOut = LaidOutAs<T, kMultipliesBytes && is_whole<Sum>>;
  using Packed = typename LaidOut::type;

 public:
  Batch(int64_t items, const Product<Left, Right>& largest, const ProductAt& product_at,
        const Finish& finish)
      : items_(items),
        columns_(largest.columns),
        depth_(largest.depth),
        row_blocks_((largest.rows + kRowsOfTask - 1) / kRowsOfTask),
        column_blocks_((columns_ + kColumnsOfTask - 1) / kColumnsOfTask),
        width_(round_up(smaller(columns_, kColumnsOfTask), kPanelWidth<T>)),
        rows_(smaller(largest.rows, kRowsOfTask)),
        product_at_(product_at),
        finish_(finish) {}

  // False when there is no memory left.
  bool run(const bringup_ctx* ctx) {
    const int64_t units = items_ * column_blocks_;
    if (units == 0 || row_blocks_ == 0) return true;
    // A right operand that one block of rows uses is laid out where it is used, block by block.
    if (row_blocks_ == 1 || depth_ == 0) return compute(ctx, nullptr, 0, units);
    const int64_t fit = kSharedBytes / (unit_size() * static_cast<int64_t>(sizeof(Packed)));
    const int64_t window = smaller(units, fit > 0 ? fit : 1);
    Packed* shared = bringup::workspace<Packed>(ctx, window * unit_size());
    if (shared == nullptr) return false;
    for (int64_t first = 0; first < units; first += window) {
      const int64_t count = smaller(window, units - first);
      share(ctx, shared, first, count);
      if (!compute(ctx, shared, first, count)) return false;
    }
    return true;
  }

 private:
  int64_t unit_size() const { return width_ * LaidOut::depth(depth_); }
  int64_t blocks_of_depth() const { return (depth_ + kDepthOfBlock - 1) / kDepthOfBlock; }
  int64_t first_column(int64_t unit) const { return unit % column_blocks_ * kColumnsOfTask; }
  int64_t columns_at(int64_t column) const { return smaller(kColumnsOfTask, columns_ - column); }
  // Of the panels of one block of depth within a unit.
  int64_t block_offset(int64_t first) const { return LaidOut::depth(first) * width_; }

  // Lays out the right operands of `count` units from `first`.
  void share(const bringup_ctx* ctx, Packed* shared, int64_t first, int64_t count) const {
    const int64_t blocks = blocks_of_depth();
    bringup::parallel_for(
        ctx, count * blocks, 1 + kWorthATask / (width_ * kDepthOfBlock * 8),
        [&](int64_t begin, int64_t end) {
          for (int64_t task = begin; task < end; ++task) {
            const int64_t unit = first + task / blocks;
            const auto product = product_at_(unit / column_blocks_);
            const int64_t start = task % blocks * kDepthOfBlock;
            if (start >= product.depth) continue;
            const int64_t column = first_column(unit);
            pack_block<T>(shared + task / blocks * unit_size() + block_offset(start), product.right,
                          start, smaller(kDepthOfBlock, product.depth - start), column,
                          columns_at(column));
          }
        });
  }

  bool compute(const bringup_ctx* ctx, const Packed* shared, int64_t first, int64_t count) const {
    const int64_t work = rows_ * width_ * (depth_ + 1);
    bool enough = true;
    bringup::parallel_for(
        ctx, count * row_blocks_, 1 + kWorthATask / work, [&](int64_t begin, int64_t end) {
          const int64_t padded = round_up(rows_, kProductTileRows);
          Packed* left = bringup::workspace<Packed>(ctx, padded * kRowStride);
          Sum* sums = bringup::workspace<Sum>(ctx, padded * width_);
          const int64_t own_size = width_ * LaidOut::depth(smaller(kDepthOfBlock, depth_));
          Packed* own = shared != nullptr ? nullptr : bringup::workspace<Packed>(ctx, own_size);
          if (left == nullptr || sums == nullptr || (shared == nullptr && own == nullptr)) {
            __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
            return;
          }
          for (int64_t task = begin; task < end; ++task) {
            const int64_t unit = task / row_blocks_;
            const Packed* panels = shared == nullptr ? nullptr : shared + unit * unit_size();
            compute_task(first + unit, task % row_blocks_ * kRowsOfTask, panels, own, left, sums);
          }
        });
    return enough;
  }

  void compute_task(int64_t unit, int64_t row, const Packed* panels, Packed* own, Packed* left,
                    Sum* sums) const {
    const int64_t item = unit / column_blocks_;
    const auto product = product_at_(item);
    if (row >= product.rows) return;
    const int64_t rows = smaller(kRowsOfTask, product.rows - row);
    const int64_t column = first_column(unit);
    const int64_t columns = columns_at(column);
    if (product.depth == 0) {
      __builtin_memset(sums, 0, static_cast<size_t>(rows * width_) * sizeof(Sum));
    }
    for (int64_t start = 0; start < product.depth; start += kDepthOfBlock) {
      const int64_t depth = smaller(kDepthOfBlock, product.depth - start);
      const Packed* block = panels + (panels == nullptr ? 0 : block_offset(start));
      if (panels == nullptr) {
        pack_block<T>(own, product.right, start, depth, column, columns);
        block = own;
      }
      int32_t offsets[kRowsOfTask] = {};
      const int64_t packed = LaidOut::depth(depth);
      if constexpr (is_whole<Packed>) {
        pack_rows_of_bytes(left, kRowStride, offsets, product.left, row, rows, start, depth);
      } else {
        pack_rows(left, kRowStride, product.left, row, rows, start, depth);
        if constexpr (Left::kScaled) {
          scale_rows(left, kRowStride, product.left, row, rows, start, depth);
        }
      }
      const int64_t padded = round_up(rows, kProductTileRows);
      for (int64_t r = rows; r < padded; ++r) {
        __builtin_memset(left + r * kRowStride, 0, static_cast<size_t>(packed) * sizeof(Packed));
      }
      for (int64_t j = 0; j < columns; j += kPanelWidth<T>) {
        product_column(left, rows, block + j * packed, packed, sums + j, width_, start == 0,
                       offsets);
      }
    }
    for (int64_t r = 0; r < rows; ++r) finish_(item, row + r, column, sums + r * width_, columns);
  }

  const int64_t items_;
  const int64_t columns_;
  const int64_t depth_;
  const int64_t row_blocks_;
  const int64_t column_blocks_;
  const int64_t width_;  // of the widest unit, in whole panels
  const int64_t rows_;   // of the highest task
  const ProductAt& product_at_;
  const Finish& finish_;
};

// Runs `items` products of at most the size of `largest`; see Batch.
template <class Left, class Right, class ProductAt, class Finish>
inline int32_t run_batch(const bringup_ctx* ctx, int64_t items, const Product<Left, Right>& largest,
                         const ProductAt& product_at, const Finish& finish) {
  Batch<Left, Right, ProductAt, Finish> batch(items, largest, product_at, finish);
  return batch.run(ctx) ? 0 : bringup::fail(ctx, "no workspace memory left");
}

// Null when the ends of groups (int32 or int64) rise from 0 to at most `size`, otherwise why not.
inline const char* read_ends(const DLTensor& list, int64_t size, const bringup_ctx* ctx,
                             const int64_t*& ends) {
  const int64_t groups = list.shape[0];
  auto* copy = bringup::workspace<int64_t>(ctx, groups);
  if (copy == nullptr && groups > 0) return "no workspace memory left";
  int64_t last = 0;
  for (int64_t g = 0; g < groups; ++g) {
    copy[g] = list.dtype.bits == 32 ? static_cast<const int32_t*>(list.data)[g]
                                    : static_cast<const int64_t*>(list.data)[g];
    if (copy[g] < last || copy[g] > size) {
      return "group_list must rise from 0 to at most m, or k for slices of the depth: where the "
             "rows or the depth of each group end";
    }
    last = copy[g];
  }
  ends = copy;
  return nullptr;
}
inline int64_t group_start(const int64_t* ends, int64_t group) {
  return group == 0 ? 0 : ends[group - 1];
}

// Turns `count` sums of one row into results: out[j] = rule(sums[j], j, lanes), lanes at a time.
template <class T, class Sum, class Element, class Rule>
inline void write_row(Element* out, const Sum* sums, int64_t count, const Rule& rule) {
  for (int64_t j = 0; j < count; j += kLanes<T>) {
    const int64_t lanes = smaller(count - j, kLanes<T>);
    // The buffer goes on behind `count`: its rows are whole panels.
    store_some<T>(out + j, rule(load_as<T>(sums + j), j, lanes), lanes);
  }
}

}  // namespace bringup_kernels
