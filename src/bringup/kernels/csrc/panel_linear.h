// x[m, k] times a weight in panels [ceil(n / 16), k, 16], plus bias[n], then an activation: the
// loop of packed_linear.
//
// A group is as many panels as fill kTileVectors vectors; a tile is up to kTallestTile rows by a
// group, held in registers over a block of depth (Goto, van de Geijn: Anatomy of High-Performance
// Matrix Multiplication, 2008). A block of a group stays in the first-level cache while all tiles
// of rows use it, and they prefetch the next one: a product of few rows takes the longer
// of the two times, that of the arithmetic and that of reading the weight, not their sum.
//
// Each element is the bias plus the sums of the blocks, in order: which tile it falls into, how
// many rows there are and how many threads changes no bit of it. One sum over all of the depth
// would be further off, by as much as it is longer than a block (Higham, The Accuracy of Floating
// Point Summation, 1993): four times further than torch's product at a depth of 8192.
#pragma once

#include "activations.h"
#include "bringup/kernel.h"
#include "gemm/elements.h"
#include "panel_gemm.h"

namespace bringup_kernels {

template <>
struct VectorOf<int32_t> {
  using type = Mask<float>;
  using mask = Mask<float>;
};

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

// The arguments that the forms of packed_linear have in common.
template <class T>
struct LinearArguments {
  const T* bias = nullptr;
  int64_t padding = 0;
  Activation activation = Activation::kNone;

  // Null, or why they are not right.
  const char* read(const void* bias_argument, const void* padding_argument,
                   const void* activation_argument) {
    padding = bringup::scalar<int64_t>(padding_argument);
    if (padding < 0 || padding >= kPanel) {
      return "padding must be the columns that the last panel lacks, 0 to 15";
    }
    if (!parse_activation(bringup::text(activation_argument), &activation)) {
      return "activation must be none, relu, gelu, gelu_tanh or silu";
    }
    if (!bringup::is_none(bias_argument)) {
      bias = static_cast<const T*>(bringup::tensor(bias_argument).data);
    }
    return nullptr;
  }
};

// A weight that is read as it is.
template <class T>
struct PlainWeight {
  using Word = T;
  static constexpr int kWidth = 1;
  template <int>
  static Vec<T> element(const T* from) {
    return load(from);
  }
};

// A pair of bfloat16 of one column in a word: depth 2 i in its lower half.
struct Bfloat16Weight {
  using Word = int32_t;
  static constexpr int kWidth = 2;
  template <int kIndex>
  static Vec<float> element(const int32_t* from) {
    const Vec<int32_t> word = load(from);
    return reinterpret<Vec<float>>(kIndex == 0 ? word << 16 : word & -65536);
  }
};

// Four bytes of one column in a word, the first in its lowest bits, each with 128 added.
struct ByteWeight {
  using Word = int32_t;
  static constexpr int kWidth = 4;
  template <int kIndex>
  static Vec<float> element(const int32_t* from) {
    const Vec<int32_t> byte = load(from) >> 8 * kIndex & 255;
    return __builtin_convertvector(byte, Vec<float>) - 128.0f;
  }
};

// What is multiplied: x in T by a Weight. A Kernel has
//   Sum, Left, Panel, Out   of a sum, of x as it is laid out, of a word of the panels, of results
//   Row                     what `lay_out_rows` finds out about each row
//   kWidth                  elements of a row for a word of the panels
//   element                 one of those that words have, by its number, for columns side by side
//   add_step                adds one element's products to sums
//   result                  makes a vector of results of one of sums; kHasResult: it does anything
template <class T, class Weight>
struct FloatKernel {
  using Sum = T;
  using Left = T;
  using Panel = typename Weight::Word;
  using Out = T;
  struct Row {};
  static constexpr int kWidth = Weight::kWidth;
  static constexpr bool kHasResult = false;

  template <int kIndex>
  static Vec<T> element(const Panel* from) {
    return Weight::template element<kIndex>(from);
  }
  static Vec<T> add_step(Vec<T> sum, T left, Vec<T> right) {
    return multiply_add(left, right, sum);
  }
  static Vec<T> result(Vec<T> sum, Row) { return sum; }

  // Rows [first, first + rows) of x, block of depth by block of depth: [blocks, rows, kRowStride].
  KERNEL_NOINLINE static void lay_out_rows(T* to, Row*, const bringup::View<const T, 2>& x,
                                           int64_t first, int64_t rows) {
    const int64_t padding = -x.size(1) & (kWidth - 1);
    for (int64_t start = 0; start < x.size(1); start += kDepthOfBlock) {
      const int64_t count = smaller(kDepthOfBlock, x.size(1) - start);
      for (int64_t r = 0; r < rows; ++r, to += kRowStride) {
        const T* from = x.data() + (first + r) * x.stride(0) + start * x.stride(1);
        if (x.stride(1) == 1) {
          __builtin_memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
        } else {
          for (int64_t i = 0; i < count; ++i) to[i] = from[i * x.stride(1)];
        }
        if (count < kDepthOfBlock) {
          for (int64_t i = 0; i < padding; ++i) to[count + i] = 0;
        }
      }
    }
  }
};

template <class Kernel>
struct PanelLinear {
  bringup::View<const typename Kernel::Out, 2> x;
  const typename Kernel::Panel* panels;
  typename Kernel::Out* out;
  int64_t rows;
  int64_t columns;
  int64_t words;                       // of a column of the panels
  const typename Kernel::Out* scales;  // null, or what columns are multiplied by, before the bias
  const typename Kernel::Out* bias;    // null, or of each column; without scales sums start from it
  Activation activation;
};

// A block of a tile: rows of x as they are laid out, a block of the group's panels.
template <class Kernel>
struct TileBlock {
  using Sum = typename Kernel::Sum;

  const typename Kernel::Left* x;
  const typename Kernel::Panel* panels;
  int64_t panel_stride;
  int64_t words;
  const Sum* start;  // what the sums are added to; null: to what is in `sums`
  Sum* sums;
  int64_t sum_stride;
  const char* prefetch;  // per panel and step, `prefetch_step` bytes further
  int64_t prefetch_stride;
  int64_t prefetch_step;
};

// Adds the products of the element of number kIndex, and of those behind it, in words of the
// panels.
template <class Kernel, int kRows, int kIndex = 0>
inline __attribute__((always_inline)) void add_elements(
    Vec<typename Kernel::Sum> (*tile)[kTileVectors<typename Kernel::Sum>],
    const typename Kernel::Left* x, const typename Kernel::Panel* panels, int64_t panel_stride) {
  using Sum = typename Kernel::Sum;
  constexpr int kVectors = kTileVectors<Sum>;
  Vec<Sum> right[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    right[v] = Kernel::template element<kIndex>(panels + v / kPanelVectors<Sum> * panel_stride +
                                                v % kPanelVectors<Sum> * kLanes<Sum>);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const typename Kernel::Left left = x[r * kRowStride + kIndex];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) tile[r][v] = Kernel::add_step(tile[r][v], left, right[v]);
  }
  if constexpr (kIndex + 1 < Kernel::kWidth) {
    add_elements<Kernel, kRows, kIndex + 1>(tile, x, panels, panel_stride);
  }
}

// Everything of `block` is read before the sums: those stay in registers up to the stores.
template <class Kernel, int kRows>
KERNEL_NOINLINE void tile_block(const TileBlock<Kernel>& block) {
  using Sum = typename Kernel::Sum;
  constexpr int kVectors = kTileVectors<Sum>;
  const typename Kernel::Left* x = block.x;
  const typename Kernel::Panel* panels = block.panels;
  const typename Kernel::Panel* const end = panels + block.words * kPanel;
  const int64_t panel_stride = block.panel_stride;
  const char* prefetch = block.prefetch;
  const int64_t prefetch_stride = block.prefetch_stride;
  const int64_t prefetch_step = block.prefetch_step;
  Sum* const sums = block.sums;
  const int64_t sum_stride = block.sum_stride;
  const Sum* from = block.start != nullptr ? block.start : sums;
  const int64_t from_stride = block.start != nullptr ? 0 : sum_stride;

  if (block.start != nullptr) {  // nothing has fetched what will be written
    const Sum* line = sums;
    for (int r = 0; r < kRows; ++r, line += sum_stride) {
      __builtin_prefetch(line, 1, 3);
      __builtin_prefetch(line + kGroupColumns<Sum> - 1, 1, 3);
    }
  }
  Vec<Sum> tile[kRows][kVectors] = {};
  for (; panels != end; panels += kPanel, prefetch += prefetch_step, x += Kernel::kWidth) {
    for (int p = 0; p < kGroupPanels<Sum>; ++p) {
      __builtin_prefetch(prefetch + p * prefetch_stride, 0, 2);
    }
    add_elements<Kernel, kRows>(tile, x, panels, panel_stride);
  }
  Sum* to = sums;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r, to += sum_stride, from += from_stride) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      store(to + v * kLanes<Sum>, load(from + v * kLanes<Sum>) + tile[r][v]);
    }
  }
}

// A tile has kTallestTile rows or a power of two below that: few sizes compile in little time.
constexpr int power_of_two_below(int number) {
  int power = 1;
  while (2 * power < number) power *= 2;
  return power;
}

// The rows of the next tile when `left` are left: 16 are 8 and 8, not 14 and 2.
template <class T>
inline int64_t next_height(int64_t left) {
  constexpr int64_t kTallest = kTallestTile<T>;
  if (left >= kTallest && (left != kTallest + 2 || kTallest < 4)) return kTallest;
  int64_t height = power_of_two_below(kTallest);
  while (height > left) height /= 2;
  return height;
}

template <class T>
inline int64_t count_tiles(int64_t rows) {
  int64_t count = 0;
  for (int64_t row = 0; row < rows; row += next_height<T>(rows - row)) ++count;
  return count;
}

template <class Kernel, int kRows = kTallestTile<typename Kernel::Sum>>
inline void run_tile(const TileBlock<Kernel>& block, int64_t rows) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return run_tile<Kernel, power_of_two_below(kRows)>(block, rows);
  }
  tile_block<Kernel, kRows>(block);
}

template <class T>
inline Vec<T> load_first(const T* from, int64_t count) {
  return count < kLanes<T> ? load_part(from, count) : load(from);
}

template <class T>
inline void store_first(T* to, Vec<T> value, int64_t count) {
  count < kLanes<T> ? store_part(to, value, count) : store(to, value);
}

// The rows of a tile, finished, on the way from `from` to `to`, which may be the same memory.
// `column` is their first one.
template <class Kernel>
KERNEL_NOINLINE void finish_rows(const PanelLinear<Kernel>& product, typename Kernel::Out* to,
                                 int64_t to_stride, const typename Kernel::Sum* from,
                                 int64_t from_stride, const typename Kernel::Row* facts,
                                 int64_t rows, int64_t column, int64_t columns) {
  using T = typename Kernel::Out;
  for (int64_t r = 0; r < rows; ++r, to += to_stride, from += from_stride) {
    for (int64_t i = 0; i < columns; i += kLanes<T>) {
      const int64_t count = smaller(kLanes<T>, columns - i);
      Vec<T> value = Kernel::result(load_first(from + i, count), facts[r]);
      if (product.scales != nullptr) {
        value = value * load_first(product.scales + column + i, count);
        if (product.bias != nullptr) value = value + load_first(product.bias + column + i, count);
      }
      store_first(to + i, activated<T>(value, product.activation), count);
    }
  }
}

// What one thread does of a product, group after group.
template <class Kernel>
class LinearWorker {
  using Sum = typename Kernel::Sum;
  using Panel = typename Kernel::Panel;
  using Row = typename Kernel::Row;
  static constexpr int64_t kWordsOfBlock = kDepthOfBlock / Kernel::kWidth;

 public:
  // `rows` is the most that a block of rows has. False from `ready()`: no memory is left.
  LinearWorker(const bringup_ctx* ctx, const PanelLinear<Kernel>& product, int64_t rows)
      : product_(product),
        panel_stride_(product.words * kPanel),
        x_(bringup::workspace<typename Kernel::Left>(
            ctx, rows * kRowStride * ceil_div(product.words + 1, kWordsOfBlock))),
        edge_(bringup::workspace<Sum>(ctx, (kTallestTile<Sum> + 1) * kGroupColumns<Sum>)),
        facts_(bringup::workspace<Row>(ctx, rows)) {}

  bool ready() const { return x_ != nullptr && edge_ != nullptr && facts_ != nullptr; }

  // From now on: these rows.
  void take_rows(int64_t first, int64_t rows) {
    first_ = first;
    rows_ = rows;
    tiles_ = count_tiles<Sum>(rows);
    Kernel::lay_out_rows(x_, facts_, product_.x, first, rows);
  }

  // All of the rows by one group; `next` is the group that will follow.
  void run_group(int64_t group, int64_t next) {
    const int64_t column = group * kGroupColumns<Sum>;
    const int64_t count = smaller(kGroupColumns<Sum>, product_.columns - column);
    Sum* start = edge_ + kTallestTile<Sum> * kGroupColumns<Sum>;
    fill_start(start, column, count);
    const Panel* panels = group_at(group);
    const int64_t panel_stride = count > kPanel ? panel_stride_ : 0;
    TileBlock<Kernel> block{
        x_, panels, panel_stride, 0, start, nullptr, product_.columns, nullptr, panel_stride, 0};
    if (count < kGroupColumns<Sum>) return run_edge(block, column, count);
    block.prefetch_step = ceil_div(kPanel * static_cast<int64_t>(sizeof(Panel)), tiles_);
    for (int64_t word = 0; word == 0 || word < product_.words; word += kWordsOfBlock) {
      set_words(&block, panels, start, word);
      const bool last = word + kWordsOfBlock >= product_.words;
      const Panel* following = last ? group_at(next) : panels + (word + kWordsOfBlock) * kPanel;
      block.prefetch = reinterpret_cast<const char*>(following);
      for (int64_t row = 0, height; row < rows_; row += height) {
        height = next_height<Sum>(rows_ - row);
        auto* out = product_.out + (first_ + row) * product_.columns + column;
        block.x = x_ + (word / kWordsOfBlock * rows_ + row) * kRowStride;
        block.sums = reinterpret_cast<Sum*>(out);
        run_tile(block, height);
        block.prefetch += block.words * block.prefetch_step;
        if (last && finishes()) {
          finish_rows(product_, out, product_.columns, block.sums, product_.columns, facts_ + row,
                      height, column, count);
        }
      }
    }
  }

 private:
  static_assert(sizeof(Sum) == sizeof(typename Kernel::Out), "sums are kept where results go");

  const Panel* group_at(int64_t group) const {
    return product_.panels + group * kGroupPanels<Sum> * panel_stride_;
  }
  bool finishes() const {
    return Kernel::kHasResult || product_.scales != nullptr ||
           product_.activation != Activation::kNone;
  }

  void fill_start(Sum* start, int64_t column, int64_t count) const {
    const bool from_bias = product_.bias != nullptr && product_.scales == nullptr;
    for (int64_t i = 0; i < kGroupColumns<Sum>; ++i) {
      start[i] = from_bias && i < count ? static_cast<Sum>(product_.bias[column + i]) : Sum(0);
    }
  }

  void set_words(TileBlock<Kernel>* block, const Panel* panels, const Sum* start,
                 int64_t word) const {
    block->words = smaller(kWordsOfBlock, product_.words - word);
    block->start = word == 0 ? start : nullptr;
    block->panels = panels + word * kPanel;
  }

  // A group whose last columns are not there: in a buffer, from which the others are copied.
  KERNEL_NOINLINE void run_edge(TileBlock<Kernel> block, int64_t column, int64_t count) {
    const Sum* start = block.start;
    const Panel* panels = block.panels;
    block.sums = edge_;
    block.sum_stride = kGroupColumns<Sum>;
    for (int64_t row = 0, height; row < rows_; row += height) {
      height = next_height<Sum>(rows_ - row);
      for (int64_t word = 0; word == 0 || word < product_.words; word += kWordsOfBlock) {
        set_words(&block, panels, start, word);
        block.x = x_ + (word / kWordsOfBlock * rows_ + row) * kRowStride;
        block.prefetch = reinterpret_cast<const char*>(block.panels);
        run_tile(block, height);
      }
      finish_rows(product_, product_.out + (first_ + row) * product_.columns + column,
                  product_.columns, edge_, kGroupColumns<Sum>, facts_ + row, height, column, count);
    }
  }

  const PanelLinear<Kernel>& product_;
  const int64_t panel_stride_;
  typename Kernel::Left* x_;
  Sum* edge_;  // a tile, and what sums start from
  Row* facts_;
  int64_t first_ = 0;
  int64_t rows_ = 0;
  int64_t tiles_ = 0;
};

// False when there is no memory left.
template <class Kernel>
inline bool run_linear(const bringup_ctx* ctx, const PanelLinear<Kernel>& product) {
  using Sum = typename Kernel::Sum;
  if (product.rows == 0 || product.columns == 0) return true;
  const int64_t row_bytes =
      (product.words + 1) * Kernel::kWidth * static_cast<int64_t>(sizeof(Sum));
  // Blocks of rows of about one size, in whole tiles.
  constexpr int64_t kTallest = kTallestTile<Sum>;
  const int64_t most = kBytesOfRows / row_bytes / kTallest * kTallest;
  const int64_t parts = ceil_div(product.rows, most < kTallest ? kTallest : most);
  const int64_t rows = ceil_div(ceil_div(product.rows, parts), kTallest) * kTallest;
  const int64_t blocks = ceil_div(product.rows, rows);
  const int64_t groups = ceil_div(product.columns, kGroupColumns<Sum>);
  const int64_t work =
      smaller(rows, product.rows) * kGroupColumns<Sum> * (product.words + 1) * Kernel::kWidth;
  bool enough = true;
  bringup::parallel_for(
      ctx, blocks * groups, 1 + kWorthAThread / work, [&](int64_t begin, int64_t end) {
        LinearWorker<Kernel> worker(ctx, product, rows);
        if (!worker.ready()) {
          __atomic_store_n(&enough, false, __ATOMIC_RELAXED);
          return;
        }
        for (int64_t task = begin; task < end; ++task) {
          const int64_t block = task / groups;
          if (task == begin || task % groups == 0) {
            worker.take_rows(block * rows, smaller(rows, product.rows - block * rows));
          }
          worker.run_group(task % groups, (task + 1 < end ? task + 1 : task) % groups);
        }
      });
  return enough;
}

// (x, panels of bytes, scales, bias, padding, activation, out): a scale for each column.
template <class Kernel>
inline int32_t run_scaled_linear(void** args, const bringup_ctx* ctx) {
  const bringup::View<const float, 2> x(args[0]);
  const bringup::View<const uint8_t, 4> panels(args[1]);
  LinearArguments<float> given;
  if (const char* reason = given.read(args[3], args[4], args[5])) return bringup::fail(ctx, reason);
  const PanelLinear<Kernel> product{x,
                                    reinterpret_cast<const int32_t*>(panels.data()),
                                    static_cast<float*>(bringup::tensor(args[6]).data),
                                    x.size(0),
                                    panels.size(0) * kPanel - given.padding,
                                    panels.size(1),
                                    static_cast<const float*>(bringup::tensor(args[2]).data),
                                    given.bias,
                                    given.activation};
  if (!run_linear(ctx, product)) return bringup::fail(ctx, "no workspace memory left");
  return 0;
}

}  // namespace bringup_kernels
