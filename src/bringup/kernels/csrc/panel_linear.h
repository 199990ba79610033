// x[m, k] times a weight in panels [ceil(n / 16), k, 16], plus bias[n], then an activation: the
// loop of packed_linear.
//
// A group is as many panels as fill kTileVectors vectors; a tile is up to kTallestTile rows by a
// group, held in registers over a block of depth (Goto, van de Geijn: Anatomy of High-Performance
// Matrix Multiplication, 2008). A block of a group stays in the first-level cache while all tiles
// of rows use it, and meanwhile they prefetch the next one: a product of few rows takes the longer
// of the two times, that of the arithmetic and that of reading the weight, not their sum.
//
// Each element is one sum over the depth, in order, from the bias on: which tile it falls into, how
// many rows there are and how many threads changes no bit of it.
#pragma once

#include "activations.h"
#include "bringup/kernel.h"
#include "panel_gemm.h"

#define KERNEL_NOINLINE __attribute__((noinline))

namespace bringup_kernels {

template <class T>
constexpr int kTileVectors = kPanelVectors<T> < 2 ? 2 : kPanelVectors<T>;
template <class T>
constexpr int kGroupPanels = kTileVectors<T> / kPanelVectors<T>;
template <class T>
constexpr int64_t kGroupColumns = kGroupPanels<T> * kPanel;
// The group's vectors and one element of x need registers too.
template <class T>
constexpr int kRegistersForTile = kVectorRegisters - kTileVectors<T> - 1;
template <class T>
constexpr int kTallestTile =
    kRegistersForTile<T> < kTileVectors<T> ? 1 : kRegistersForTile<T> / kTileVectors<T>;

constexpr int64_t kDepthOfBlock = 384;
constexpr int64_t kRowStride = kDepthOfBlock + 16;  // no two rows of a tile in one set of a cache
constexpr int64_t kBytesOfRows = 512 << 10;         // of x laid out at one time
constexpr int64_t kWorthAThread = 65536;            // multiplications

constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

enum class Activation { kNone, kRelu, kGelu, kGeluTanh, kSilu };

inline bool parse_activation(const char* name, Activation* activation) {
  constexpr const char* kNames[] = {"none", "relu", "gelu", "gelu_tanh", "silu"};
  for (int i = 0; i < 5; ++i) {
    *activation = static_cast<Activation>(i);
    if (__builtin_strcmp(name, kNames[i]) == 0) return true;
  }
  return false;
}

template <class T>
inline Vec<T> activated(Vec<T> value, Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return relu(value);
    case Activation::kGelu:
      return gelu(value);
    case Activation::kGeluTanh:
      return gelu_tanh(value);
    case Activation::kSilu:
      return silu(value);
    default:
      return value;
  }
}

template <class T>
struct PanelLinear {
  bringup::View<const T, 2> x;
  const T* panels;
  const T* bias;  // null or `columns` values
  T* out;
  int64_t rows;
  int64_t columns;
  int64_t depth;
  Activation activation;
};

// A block of a tile: rows of x as they are laid out, a block of the group's panels.
template <class T>
struct TileBlock {
  const T* x;
  const T* panels;
  int64_t panel_stride;
  int64_t depth;
  const T* start;  // what the sums start from; null: from what is in `out`
  T* out;
  int64_t out_stride;
  const char* prefetch;  // per panel and step, `prefetch_step` bytes further
  int64_t prefetch_stride;
  int64_t prefetch_step;
};

// Everything of `block` is read before the sums: they stay in registers from here to the stores.
template <class T, int kRows>
KERNEL_NOINLINE void tile_block(const TileBlock<T>& block) {
  constexpr int kVectors = kTileVectors<T>;
  const T* x = block.x;
  const T* panels = block.panels;
  const T* const end = panels + block.depth * kPanel;
  const int64_t panel_stride = block.panel_stride;
  const char* prefetch = block.prefetch;
  const int64_t prefetch_stride = block.prefetch_stride;
  const int64_t prefetch_step = block.prefetch_step;
  T* const out = block.out;
  const int64_t out_stride = block.out_stride;
  const T* from = block.start != nullptr ? block.start : out;
  const int64_t from_stride = block.start != nullptr ? 0 : out_stride;

  Vec<T> tile[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r, from += from_stride) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) tile[r][v] = load(from + v * kLanes<T>);
  }
  if (block.start != nullptr) {  // nobody has fetched what will be written
    const T* line = out;
    for (int r = 0; r < kRows; ++r, line += out_stride) {
      __builtin_prefetch(line, 1, 3);
      __builtin_prefetch(line + kGroupColumns<T> - 1, 1, 3);
    }
  }
  for (; panels != end; panels += kPanel, prefetch += prefetch_step, ++x) {
    Vec<T> right[kVectors];
#pragma GCC unroll 8
    for (int p = 0; p < kGroupPanels<T>; ++p) {
#pragma GCC unroll 8
      for (int v = 0; v < kPanelVectors<T>; ++v) {
        right[p * kPanelVectors<T> + v] = load(panels + p * panel_stride + v * kLanes<T>);
      }
      __builtin_prefetch(prefetch + p * prefetch_stride, 0, 2);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const T left = x[r * kRowStride];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) tile[r][v] += left * right[v];
    }
  }
  T* to = out;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r, to += out_stride) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(to + v * kLanes<T>, tile[r][v]);
  }
}

// Tiles have 1 or 3 rows or an even number: half of the sizes are half of the compile time.
template <class T>
constexpr int64_t kOddTile = kTallestTile<T> < 3 ? 1 : 3;

// How rows are cut into tiles: even ones of about one size, then an odd one if there must be.
template <class T>
struct Tiles {
  explicit Tiles(int64_t rows)
      : odd(rows % 2 == 0 ? 0 : smaller(rows, kOddTile<T>)),
        pairs((rows - odd) / 2),
        even_count(ceil_div(2 * pairs, kTallestTile<T>)) {}

  int64_t count() const { return even_count + (odd == 0 ? 0 : 1); }
  int64_t first(int64_t tile) const {
    return tile <= even_count && even_count > 0 ? 2 * (pairs * tile / even_count) : 0;
  }
  int64_t height(int64_t tile) const {
    return tile == even_count ? odd : first(tile + 1) - first(tile);
  }

  int64_t odd;
  int64_t pairs;
  int64_t even_count;
};

template <class T, int kRows = kTallestTile<T>>
inline void run_tile(const TileBlock<T>& block, int64_t rows) {
  if constexpr (kRows > 1) {
    constexpr int kLess = kRows > 4 ? kRows - 2 : kRows - 1;
    if (rows < kRows) return run_tile<T, kLess>(block, rows);
  }
  tile_block<T, kRows>(block);
}

// Rows [first, first + rows) of x, block of depth by block of depth: [blocks, rows, kRowStride].
template <class T>
KERNEL_NOINLINE void lay_out_rows(T* to, const bringup::View<const T, 2>& x, int64_t first,
                                  int64_t rows) {
  const int64_t depth = x.size(1);
  for (int64_t start = 0; start < depth; start += kDepthOfBlock) {
    const int64_t count = smaller(kDepthOfBlock, depth - start);
    for (int64_t r = 0; r < rows; ++r, to += kRowStride) {
      const T* from = x.data() + (first + r) * x.stride(0) + start * x.stride(1);
      if (x.stride(1) == 1) {
        __builtin_memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
      } else {
        for (int64_t i = 0; i < count; ++i) to[i] = from[i * x.stride(1)];
      }
    }
  }
}

// Applies the activation to what a tile has left in `from`, on the way to `to`.
template <class T>
KERNEL_NOINLINE void finish_rows(T* to, int64_t to_stride, const T* from, int64_t from_stride,
                                 int64_t rows, int64_t columns, Activation activation) {
  for (int64_t r = 0; r < rows; ++r, to += to_stride, from += from_stride) {
    int64_t i = 0;
    for (; i + kLanes<T> <= columns; i += kLanes<T>) {
      store(to + i, activated<T>(load(from + i), activation));
    }
    if (i < columns) {
      const int64_t rest = columns - i;
      store_part(to + i, activated<T>(load_part(from + i, rest), activation), rest);
    }
  }
}

// What one thread does of a product, group after group.
template <class T>
class LinearWorker {
 public:
  // `rows` is the most that a block of rows has. False from `ready()`: no memory is left.
  LinearWorker(const bringup_ctx* ctx, const PanelLinear<T>& product, int64_t rows)
      : product_(product),
        panel_stride_(product.depth * kPanel),
        x_(bringup::workspace<T>(ctx,
                                 rows * kRowStride * ceil_div(product.depth + 1, kDepthOfBlock))),
        edge_(bringup::workspace<T>(ctx, (kTallestTile<T> + 1) * kGroupColumns<T>)) {}

  bool ready() const { return x_ != nullptr && edge_ != nullptr; }

  // From now on: these rows.
  void take_rows(int64_t first, int64_t rows) {
    first_ = first;
    rows_ = rows;
    lay_out_rows(x_, product_.x, first, rows);
  }

  // All of the rows by one group; `next` is the group that will follow.
  void run_group(int64_t group, int64_t next) {
    const Tiles<T> tiles(rows_);
    const int64_t count_of_tiles = tiles.count();
    const int64_t column = group * kGroupColumns<T>;
    const int64_t count = smaller(kGroupColumns<T>, product_.columns - column);
    const bool whole = count == kGroupColumns<T>;
    T* start = edge_ + kTallestTile<T> * kGroupColumns<T>;
    fill_start(start, column, count);
    const T* panels = product_.panels + group * kGroupPanels<T> * panel_stride_;
    const int64_t panel_stride = count > kPanel ? panel_stride_ : 0;
    TileBlock<T> block{
        x_, panels, panel_stride, 0, start, nullptr, product_.columns, nullptr, panel_stride, 0};
    if (!whole) return run_edge(block, tiles, column, count);
    for (int64_t depth = 0; depth == 0 || depth < product_.depth; depth += kDepthOfBlock) {
      block.depth = smaller(kDepthOfBlock, product_.depth - depth);
      block.start = depth == 0 ? start : nullptr;
      const bool last = depth + kDepthOfBlock >= product_.depth;
      const T* following = last ? product_.panels + next * kGroupPanels<T> * panel_stride_
                                : panels + (depth + kDepthOfBlock) * kPanel;
      block.prefetch_step = ceil_div(kPanel * static_cast<int64_t>(sizeof(T)), count_of_tiles);
      for (int64_t tile = 0; tile < count_of_tiles; ++tile) {
        const int64_t row = tiles.first(tile);
        const int64_t height = tiles.height(tile);
        block.x = x_ + (depth * rows_ / kDepthOfBlock + row) * kRowStride;
        block.panels = panels + depth * kPanel;
        block.out = product_.out + (first_ + row) * product_.columns + column;
        block.prefetch =
            reinterpret_cast<const char*>(following) + tile * block.depth * block.prefetch_step;
        run_tile(block, height);
        if (last && product_.activation != Activation::kNone) {
          finish_rows(block.out, product_.columns, block.out, product_.columns, height, count,
                      product_.activation);
        }
      }
    }
  }

 private:
  void fill_start(T* start, int64_t column, int64_t count) const {
    for (int64_t i = 0; i < kGroupColumns<T>; ++i) {
      start[i] = product_.bias != nullptr && i < count ? product_.bias[column + i] : T(0);
    }
  }

  // A group whose last columns are not there: in a buffer, from which the others are copied.
  KERNEL_NOINLINE void run_edge(TileBlock<T> block, const Tiles<T>& tiles, int64_t column,
                                int64_t count) {
    const T* start = block.start;
    const T* panels = block.panels;
    block.out = edge_;
    block.out_stride = kGroupColumns<T>;
    for (int64_t tile = 0; tile < tiles.count(); ++tile) {
      const int64_t row = tiles.first(tile);
      const int64_t height = tiles.height(tile);
      for (int64_t depth = 0; depth == 0 || depth < product_.depth; depth += kDepthOfBlock) {
        block.depth = smaller(kDepthOfBlock, product_.depth - depth);
        block.start = depth == 0 ? start : nullptr;
        block.x = x_ + (depth * rows_ / kDepthOfBlock + row) * kRowStride;
        block.panels = panels + depth * kPanel;
        block.prefetch = reinterpret_cast<const char*>(block.panels);
        run_tile(block, height);
      }
      finish_rows(product_.out + (first_ + row) * product_.columns + column, product_.columns,
                  edge_, kGroupColumns<T>, height, count, product_.activation);
    }
  }

  const PanelLinear<T>& product_;
  const int64_t panel_stride_;
  T* x_;
  T* edge_;  // a tile, and what sums start from
  int64_t first_ = 0;
  int64_t rows_ = 0;
};

// False when there is no memory left.
template <class T>
inline bool run_linear(const bringup_ctx* ctx, const PanelLinear<T>& product) {
  if (product.rows == 0 || product.columns == 0) return true;
  const int64_t row_bytes = (product.depth + 1) * static_cast<int64_t>(sizeof(T));
  const int64_t most = kBytesOfRows / row_bytes;
  const int64_t at_a_time = most < kTallestTile<T> ? kTallestTile<T> : most;
  const int64_t blocks = ceil_div(product.rows, at_a_time);
  const int64_t groups = ceil_div(product.columns, kGroupColumns<T>);
  const int64_t rows = ceil_div(product.rows, blocks);
  const int64_t work = rows * kGroupColumns<T> * (product.depth + 1);
  bool enough = true;
  bringup::parallel_for(
      ctx, blocks * groups, 1 + kWorthAThread / work, [&](int64_t begin, int64_t end) {
        LinearWorker<T> worker(ctx, product, rows);
        if (!worker.ready()) {
          __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
          return;
        }
        for (int64_t task = begin; task < end; ++task) {
          const int64_t block = task / groups;
          if (task == begin || task % groups == 0) {
            const int64_t first = product.rows * block / blocks;
            worker.take_rows(first, product.rows * (block + 1) / blocks - first);
          }
          worker.run_group(task % groups, (task + 1 < end ? task + 1 : task) % groups);
        }
      });
  return enough;
}

}  // namespace bringup_kernels
