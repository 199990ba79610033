// bringup::attention(Tensor q, Tensor k, Tensor v, int[] actual_seq_lengths, float scale, bool
// causal, int window, int[]? actual_seq_lengths_kv) -> Tensor
//
// softmax(q k^T * scale) v over sequences of different length in one batch. q is [B, H, S, D], k
// and v are [B, G, K, D] and [B, G, K, E], H a multiple of G, with any strides (a model's
// transposed views are taken as they are). Of sequence b the first actual_seq_lengths[b] rows and
// the first actual_seq_lengths_kv[b] keys count: nothing looks behind them, and rows behind them,
// or that see no key, come out as zeros. The rows are the last ones of the keys: row i has position
// i + keys - rows. The output is [B, S, H, E], so that joining the heads costs nothing.
//
// Keys and values of one head are laid out in panels (panel_gemm.h) in workspace. Then blocks of
// rows meet blocks of keys, with a running maximum and sum for each row (Milakov, Gimelshein:
// Online normalizer calculation for softmax, 2018; Dao et al.: FlashAttention, 2022), so that
// scores never leave the cache. The heads that share keys share their blocks too. A few rows alone,
// as in decoding, read keys and values where they lie.
//
// Which way a row goes, and in which blocks it meets its keys, depends on its own sequence alone:
// a sequence has the same bits alone and in a batch, whatever the padding, strides and threads.
#include "bringup/kernel.h"
#include "gemm/operand.h"
#include "panel_gemm.h"

#ifndef SCALAR
#define SCALAR float
#endif

using namespace bringup_kernels;

namespace {

using T = ComputedAs<SCALAR>::type;

constexpr int64_t kStep = kLanes<T>;
constexpr int64_t kRows = 24;               // of a block
constexpr int64_t kKeys = 128;              // of a block
constexpr int64_t kFewRows = 3;             // up to which laying out keys and values costs more
constexpr int64_t kMostSlots = 64;          // items in flight; each has its own workspace
constexpr int64_t kMostElements = 1 << 24;  // of all workspaces, where items are large
constexpr int64_t kItems = 8;               // at least, where there are rows enough
constexpr int64_t kRowsWorthAnItem = 128;
constexpr int64_t kWorthAThread = 65536;  // multiplications
constexpr T kLowest = static_cast<T>(-__builtin_huge_val());

int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

using Tensor4 = bringup::View<const SCALAR, 4>;

// One [S, D] matrix of one head.
struct Matrix {
  const SCALAR* data;
  int64_t row_stride;
  int64_t column_stride;

  Matrix(const Tensor4& tensor, int64_t batch, int64_t head)
      : data(&tensor(batch, head, 0, 0)),
        row_stride(tensor.stride(2)),
        column_stride(tensor.stride(3)) {}
  // `count` columns from `column`, zeros behind them.
  Vec<T> load_row(int64_t row, int64_t column, int64_t count) const {
    return load_some<T>(data + row * row_stride + column * column_stride, column_stride,
                        smaller(count, kStep));
  }
};

struct Range {
  int64_t begin;
  int64_t end;
};

struct Job {
  Tensor4 q;
  Tensor4 k;
  Tensor4 v;
  bringup::View<SCALAR, 4> out;  // [B, S, H, E]
  bringup::List<int64_t> lengths;
  bringup::List<int64_t> key_lengths;
  T scale;
  bool causal;
  int64_t window;  // 0 for none

  int64_t group() const { return q.size(1) / k.size(1); }  // heads that share keys
  int64_t depth() const { return q.size(3); }
  int64_t padded_depth() const { return round_up(q.size(3), kPanel); }
  int64_t columns() const { return round_up(v.size(3), kPanel); }
};

// One row of queries.
struct Row {
  int64_t head;
  int64_t row;
};

// The rows of all heads of one sequence that share keys, head by head, and those keys.
struct Sequence {
  const Job& job;
  int64_t batch;
  int64_t shared;  // number of the key head
  int64_t rows;    // of one head
  int64_t keys;

  int64_t count() const { return rows * job.group(); }
  Row first(int64_t index) const { return {shared * job.group() + index / rows, index % rows}; }
  Row next(Row row) const {  // divisions take longer than all else that finds a row
    return row.row + 1 < rows ? Row{row.head, row.row + 1} : Row{row.head + 1, 0};
  }
  // The keys that it sees.
  Range seen(int64_t row) const {
    const int64_t position = row + keys - rows;
    Range range{0, job.causal ? position + 1 : keys};
    if (job.window > 0) {
      range.begin = larger(0, position - job.window + 1);
      range.end = smaller(range.end, larger(0, position + job.window));
    }
    return range;
  }
  void load_query(Row row, T* to) const {
    const Matrix q(job.q, batch, row.head);
    for (int64_t d = 0; d < job.padded_depth(); d += kStep) {
      store(to + d, q.load_row(row.row, d, larger(0, job.depth() - d)) * job.scale);
    }
  }
  // The mixed values of a row over the sum of their weights.
  void store_result(Row row, const T* mixed, T total) const {
    SCALAR* out = &job.out(batch, row.row, row.head, 0);
    const T weight = total == 0 ? 0 : 1 / total;  // a row that sees no key
    const int64_t width = job.v.size(3);
    for (int64_t d = 0; d < width; d += kStep) {
      store_some<T>(out + d, load(mixed + d) * weight, smaller(width - d, kStep));
    }
  }
};

// What one item works in.
struct Workspace {
  T* keys;     // k^T in panels of 16 keys: [ceil(n / 16), D, 16], zeros behind the last key
  T* values;   // for each block of keys in panels of 16 columns: [ceil(E / 16), n, 16]
  T* queries;  // [kRows, padded D]
  T* scores;   // [kRows, kKeys]
  T* result;   // [kRows, padded E]
  T* mixed;    // as result: of one block of keys

  static int64_t size(const Job& job) {
    const int64_t keys = round_up(job.k.size(2), kPanel);
    return keys * (job.depth() + job.columns()) +
           kRows * (job.padded_depth() + kKeys + 2 * job.columns());
  }
  Workspace(const Job& job, T* memory) : keys(memory) {
    const int64_t length = round_up(job.k.size(2), kPanel);
    values = keys + length * job.depth();
    queries = values + length * job.columns();
    scores = queries + kRows * job.padded_depth();
    result = scores + kRows * kKeys;
    mixed = result + kRows * job.columns();
  }
};

// A square of keys from `first`, of which `count` are there, transposed; columns from `d`.
void pack_square(T* to, const Matrix& k, int64_t first, int64_t count, int64_t d, int64_t depth) {
  Vec<T> square[kStep];
  if (count >= kStep && depth - d >= kStep && k.column_stride == 1) {
    const SCALAR* from = k.data + first * k.row_stride + d;
#pragma GCC unroll 16
    for (int64_t i = 0; i < kStep; ++i) square[i] = load_as<T>(from + i * k.row_stride);
    transpose_square<1, T>(square);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kStep; ++i) store(to + i * kPanel, square[i]);
    return;
  }
  for (int64_t i = 0; i < kStep; ++i) {
    square[i] = i < count ? k.load_row(first + i, d, depth - d) : Vec<T>{};
  }
  transpose_square<1, T>(square);
  for (int64_t i = 0; i < smaller(kStep, depth - d); ++i) store(to + i * kPanel, square[i]);
}

// Sixteen keys from `first`, of which `count` are there.
void pack_panel(T* panel, const Matrix& k, int64_t first, int64_t count, int64_t depth) {
  for (int64_t lane = 0; lane < kPanel; lane += kStep) {
    for (int64_t d = 0; d < depth; d += kStep) {
      pack_square(panel + d * kPanel + lane, k, first + lane, count - lane, d, depth);
    }
  }
}

void pack(const Sequence& sequence, const Workspace& space) {
  const Job& job = sequence.job;
  const Matrix k(job.k, sequence.batch, sequence.shared);
  const Matrix v(job.v, sequence.batch, sequence.shared);
  const int64_t width = job.v.size(3);
  for (int64_t first = 0; first < sequence.keys; first += kPanel) {
    const int64_t count = smaller(kPanel, sequence.keys - first);
    pack_panel(space.keys + first * job.depth(), k, first, count, job.depth());
  }
  for (int64_t first = 0; first < sequence.keys; first += kKeys) {
    const int64_t count = smaller(kKeys, sequence.keys - first);
    T* block = space.values + first * job.columns();
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t d = 0; d < job.columns(); d += kStep) {
        const int64_t there = larger(0, width - d);
        T* to = block + d / kPanel * kPanel * count + j * kPanel + d % kPanel;
        store(to, v.load_row(first + j, d, there));
      }
    }
  }
}

template <int kBit, int... kLane>
Vec<T> exchanged(Vec<T> value, LaneList<kLane...>) {
  return __builtin_shufflevector(value, value, (kLane ^ kBit)...);
}

// The largest lane, and the sum of the lanes, in as many steps as the number of lanes has bits.
template <int kBit = static_cast<int>(kStep) / 2>
T top_lane(Vec<T> value) {
  const Vec<T> other = exchanged<kBit>(value, LanesOf<kStep>());
  value = value > other ? value : other;
  if constexpr (kBit > 1) {
    return top_lane<kBit / 2>(value);
  } else {
    return value[0];
  }
}
template <int kBit = static_cast<int>(kStep) / 2>
T lane_sum(Vec<T> value) {
  value += exchanged<kBit>(value, LanesOf<kStep>());
  if constexpr (kBit > 1) {
    return lane_sum<kBit / 2>(value);
  } else {
    return value[0];
  }
}

// Turns the scores that are seen into e^(score - most) and the others of the row into zeros;
// returns the sum. `most` becomes the largest score so far.
T exponentiate(T* row, Range seen, int64_t width, T& most) {
  for (int64_t i = 0; i < seen.begin; ++i) row[i] = kLowest;
  for (int64_t i = seen.end; i < width; ++i) row[i] = kLowest;
  Vec<T> top = load(row);
  for (int64_t i = kStep; i < width; i += kStep) {
    const Vec<T> value = load(row + i);
    top = value > top ? value : top;
  }
  const T now = top_lane(top);
  most = most > now ? most : now;
  Vec<T> total{};
  for (int64_t i = 0; i < width; i += kStep) {
    const Vec<T> value = exp_nonpositive(load(row + i) - most);
    store(row + i, value);
    total += value;
  }
  return lane_sum(total);
}

// What a block of rows has met so far.
struct Running {
  Row row[kRows];
  T most[kRows];
  T total[kRows];
  bool is_first = true;
};

// A block of `rows` rows meets the keys of the block that begins at `first`.
void meet(const Sequence& sequence, const Workspace& space, int64_t rows, int64_t first,
          int64_t end, Running& running) {
  const Job& job = sequence.job;
  const int64_t count = smaller(kKeys, sequence.keys - first);
  const int64_t width = round_up(smaller(count, end - first), kPanel);
  const int64_t columns = job.columns();
  const PanelProduct<T> score{space.queries, job.padded_depth(), space.keys + first * job.depth(),
                              nullptr,       space.scores,       kKeys,
                              job.depth()};
  panel_product(score, 0, rows, 0, width / kPanel);
  T fade[kRows];
  for (int64_t r = 0; r < rows; ++r) {
    T* row = space.scores + r * kKeys;
    Range seen = sequence.seen(running.row[r].row);
    seen = {larger(seen.begin - first, 0), smaller(seen.end - first, smaller(count, width))};
    fade[r] = 1;
    if (seen.begin < seen.end) {
      const T before = running.most[r];
      const T total = exponentiate(row, seen, width, running.most[r]);
      if (!running.is_first) fade[r] = exp_nonpositive(splat(before - running.most[r]))[0];
      running.total[r] = running.total[r] * fade[r] + total;
    } else {
      for (int64_t i = 0; i < width; ++i) row[i] = 0;
    }
    for (int64_t i = width; i < count; ++i) row[i] = 0;
  }
  T* mixed = running.is_first ? space.result : space.mixed;
  const PanelProduct<T> mix{space.scores, kKeys, space.values + first * columns, nullptr, mixed,
                            columns,      count};
  panel_product(mix, 0, rows, 0, columns / kPanel);
  if (!running.is_first) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t d = r * columns; d < (r + 1) * columns; d += kStep) {
        store(space.result + d, load(space.result + d) * fade[r] + load(mixed + d));
      }
    }
  }
  running.is_first = false;
}

// Rows [index, index + rows), at most kRows, against all keys that one of them sees.
void attend_block(const Sequence& sequence, const Workspace& space, int64_t index, int64_t rows) {
  const int64_t columns = sequence.job.columns();
  Running running;
  Range all{sequence.keys, 0};
  Row row = sequence.first(index);
  for (int64_t r = 0; r < rows; ++r, row = sequence.next(row)) {
    const Range seen = sequence.seen(row.row);
    running.row[r] = row;
    running.most[r] = kLowest;
    running.total[r] = 0;
    if (seen.begin < seen.end) {
      all = {smaller(all.begin, seen.begin), larger(all.end, seen.end)};
    }
    sequence.load_query(row, space.queries + r * sequence.job.padded_depth());
  }
  for (int64_t first = all.begin / kKeys * kKeys; first < all.end; first += kKeys) {
    meet(sequence, space, rows, first, all.end, running);
  }
  if (running.is_first)
    __builtin_memset(space.result, 0, sizeof(T) * kRows * static_cast<size_t>(columns));
  for (int64_t r = 0; r < rows; ++r) {
    sequence.store_result(running.row[r], space.result + r * columns, running.total[r]);
  }
}

T dot(const T* query, const Matrix& k, int64_t key, int64_t depth) {
  Vec<T> total{};
  for (int64_t d = 0; d < depth; d += kStep) {
    total += load(query + d) * k.load_row(key, d, depth - d);
  }
  return lane_sum(total);
}

// One row that reads keys and values where they lie. The scores are where panels would be.
void attend_row(const Sequence& sequence, const Workspace& space, Row row) {
  const Job& job = sequence.job;
  const Matrix k(job.k, sequence.batch, sequence.shared);
  const Matrix v(job.v, sequence.batch, sequence.shared);
  const Range seen = sequence.seen(row.row);
  const int64_t count = larger(0, seen.end - seen.begin);
  T* scores = space.keys;
  sequence.load_query(row, space.queries);
  T most = kLowest;
  T total = 0;
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = dot(space.queries, k, seen.begin + j, job.depth());
  }
  if (count > 0) total = exponentiate(scores, {0, count}, round_up(count, kPanel), most);
  for (int64_t d = 0; d < job.columns(); d += kPanel) {
    Vec<T> mixed[kPanelVectors<T>]{};
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t lane = 0; lane < kPanelVectors<T>; ++lane) {
        const int64_t column = d + lane * kStep;
        mixed[lane] +=
            scores[j] * v.load_row(seen.begin + j, column, larger(0, job.v.size(3) - column));
      }
    }
    for (int64_t lane = 0; lane < kPanelVectors<T>; ++lane) {
      store(space.result + d + lane * kStep, mixed[lane]);
    }
  }
  sequence.store_result(row, space.result, total);
}

void clear_padding(const Sequence& sequence) {
  const Job& job = sequence.job;
  for (int64_t row = sequence.rows; row < job.q.size(2); ++row) {
    for (int64_t head = 0; head < job.group(); ++head) {
      SCALAR* out = &job.out(sequence.batch, row, sequence.shared * job.group() + head, 0);
      __builtin_memset(static_cast<void*>(out), 0,
                       static_cast<size_t>(job.v.size(3)) * sizeof(SCALAR));
    }
  }
}

// Part `part` of `parts` of the rows of one sequence that share keys.
void attend(const Sequence& sequence, const Workspace& space, int64_t part, int64_t parts) {
  if (part == 0) clear_padding(sequence);
  const int64_t count = sequence.count();
  if (count <= kFewRows) {
    if (part != 0) return;
    for (int64_t index = 0; index < count; ++index)
      attend_row(sequence, space, sequence.first(index));
    return;
  }
  const int64_t blocks = (count + kRows - 1) / kRows;
  const int64_t begin = blocks * part / parts;
  const int64_t end = blocks * (part + 1) / parts;
  if (begin == end) return;
  pack(sequence, space);
  for (int64_t index = begin * kRows; index < smaller(end * kRows, count); index += kRows) {
    attend_block(sequence, space, index, smaller(kRows, count - index));
  }
}

// Null when the lengths fit, otherwise why they do not. The operator has compared the shapes that
// one tensor shares with another.
const char* refused_lengths(const Job& job) {
  const int64_t batch = job.q.size(0);
  if (job.lengths.size() != batch) {
    return "actual_seq_lengths must have one length for each sequence";
  }
  if (job.key_lengths.size() != batch) {
    return "actual_seq_lengths_kv must have one length for each sequence";
  }
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t rows = job.lengths[b];
    const int64_t keys = job.key_lengths[b];
    if (rows < 0 || rows > job.q.size(2)) {
      return "actual_seq_lengths must lie between 0 and the padded length of q";
    }
    if (keys < 0 || keys > job.k.size(2)) {
      return "actual_seq_lengths_kv (actual_seq_lengths, where it is not given) must lie between 0 "
             "and the padded length of k";
    }
    if (job.causal && keys < rows) {
      return "causal attention needs as many keys as rows: the rows are the last ones of the keys";
    }
  }
  return nullptr;
}

const char* refused_shapes(void** args) {
  const DLTensor& q = bringup::tensor(args[0]);
  const DLTensor& k = bringup::tensor(args[1]);
  if (q.ndim != 4) return "q, k and v must be [batch, heads, length, depth]";
  if (k.shape[1] == 0 ? q.shape[1] != 0 : q.shape[1] % k.shape[1] != 0) {
    return "the heads of q must be a multiple of those of k";
  }
  if (bringup::scalar<int64_t>(args[6]) < 0) return "window must be 0 (none) or more";
  return nullptr;
}

// How many pieces the rows that share keys are cut into, so that there are items for threads.
int64_t parts_of(const Job& job) {
  const int64_t items = job.q.size(0) * job.k.size(1);
  const int64_t wanted = (kItems + items - 1) / items;
  return larger(1, smaller(wanted, job.q.size(2) * job.group() / kRowsWorthAnItem));
}

int64_t multiplications(const Job& job) {
  int64_t total = 0;
  for (int64_t b = 0; b < job.q.size(0); ++b) total += job.lengths[b] * job.key_lengths[b];
  return total * job.q.size(1) * (job.depth() + job.v.size(3));
}

}  // namespace

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  if (const char* reason = refused_shapes(args)) return bringup::fail(ctx, reason);
  const auto lengths = bringup::list<int64_t>(args[3]);
  const int64_t window = bringup::scalar<int64_t>(args[6]);
  Job job{Tensor4(args[0]),
          Tensor4(args[1]),
          Tensor4(args[2]),
          bringup::View<SCALAR, 4>(args[8]),
          lengths,
          args[7] == nullptr ? lengths : bringup::list<int64_t>(args[7]),
          bringup::scalar<T>(args[4]),
          bringup::scalar<bool>(args[5]),
          window};
  if (window >= job.q.size(2) + job.k.size(2)) job.window = 0;  // every row sees every key
  if (const char* reason = refused_lengths(job)) return bringup::fail(ctx, reason);
  if (job.q.size(0) * job.q.size(1) * job.q.size(2) * job.v.size(3) == 0) return 0;

  const int64_t shared = job.k.size(1);
  const int64_t parts = parts_of(job);
  const int64_t items = job.q.size(0) * shared * parts;
  const int64_t slot_size = Workspace::size(job);
  const int64_t slots =
      smaller(items, larger(kItems, smaller(kMostSlots, kMostElements / slot_size)));
  auto* workspace = bringup::workspace<T>(ctx, slots * slot_size);
  if (workspace == nullptr) return bringup::fail(ctx, "no workspace memory left");
  const int64_t work = multiplications(job) / slots;
  bringup::parallel_for(
      ctx, slots, 1 + kWorthAThread / (work + 1), [&](int64_t begin, int64_t end) {
        for (int64_t slot = begin; slot < end; ++slot) {
          const Workspace space(job, workspace + slot * slot_size);
          for (int64_t item = slot; item < items; item += slots) {
            const int64_t batch = item / parts / shared;
            attend({job, batch, item / parts % shared, job.lengths[batch], job.key_lengths[batch]},
                   space, item % parts, parts);
          }
        }
      });
  return 0;
}
