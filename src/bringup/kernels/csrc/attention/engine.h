// softmax(q k^T * scale) v over sequences of different length.
//
// Keys and values of one head are laid out in panels (panel_gemm.h) in workspace. Then blocks of
// rows meet blocks of keys, with a running maximum and sum for each row (Milakov, Gimelshein:
// Online normalizer calculation for softmax, 2018; Dao et al.: FlashAttention, 2022), so that
// scores never leave the cache. The heads that share keys share their blocks too. A few rows alone,
// as in decoding, read keys and values where they lie.
//
// Which way a row goes, and in which blocks it meets its keys, depends on its own sequence alone:
// a sequence has the same bits alone and in a batch, whatever the padding, strides and threads.
#pragma once

#include "operands.h"

namespace bringup_kernels::attention {

constexpr int64_t kRows = 24;               // of a block
constexpr int64_t kKeys = 128;              // of a block
constexpr int64_t kFewRows = 3;             // up to which laying out keys and values costs more
constexpr int64_t kMostSlots = 64;          // items in flight; each has its own workspace
constexpr int64_t kMostElements = 1 << 24;  // of all workspaces, where items are large
constexpr int64_t kItems = 8;               // at least, where there are rows enough
constexpr int64_t kRowsWorthAnItem = 128;
constexpr int64_t kWorthAThread = 65536;  // multiplications

// What one item works in.
struct Workspace {
  T* keys;     // k^T in panels of 16 keys: [ceil(n / 16), D, 16], zeros behind the last key
  T* values;   // for each block of keys in panels of 16 columns: [ceil(E / 16), n, 16]
  T* queries;  // [kRows, padded D]
  T* scores;   // [kRows, kKeys]
  T* result;   // [kRows, padded E]
  T* mixed;    // as result: of one block of keys

  static int64_t size(const Job& job) {
    const int64_t keys = round_up(job.most_keys(), kPanel);
    return keys * (job.depth + job.columns()) +
           kRows * (job.padded_depth() + kKeys + 2 * job.columns());
  }
  Workspace(const Job& job, T* memory) : keys(memory) {
    const int64_t length = round_up(job.most_keys(), kPanel);
    values = keys + length * job.depth;
    queries = values + length * job.columns();
    scores = queries + kRows * job.padded_depth();
    result = scores + kRows * kKeys;
    mixed = result + kRows * job.columns();
  }
};

// A square of keys from `first`, of which `count` are there, transposed; columns from `d`.
inline void pack_square(T* to, const Matrix<KEY_SCALAR>& k, int64_t first, int64_t count, int64_t d,
                        int64_t depth) {
  Vec<T> square[kStep];
  if (count >= kStep && depth - d >= kStep && k.is_dense(d, kStep)) {
#pragma GCC unroll 16
    for (int64_t i = 0; i < kStep; ++i) square[i] = load_as<T>(k.row(first + i).at(d));
    transpose_square<1, T>(square);
#pragma GCC unroll 16
    for (int64_t i = 0; i < kStep; ++i) store(to + i * kPanel, square[i]);
    return;
  }
  for (int64_t i = 0; i < kStep; ++i) {
    square[i] = i < count ? k.row(first + i).load(d, depth - d) : Vec<T>{};
  }
  transpose_square<1, T>(square);
  for (int64_t i = 0; i < smaller(kStep, depth - d); ++i) store(to + i * kPanel, square[i]);
}

// Sixteen keys from `first`, of which `count` are there.
inline void pack_panel(T* panel, const Matrix<KEY_SCALAR>& k, int64_t first, int64_t count,
                       int64_t depth) {
  for (int64_t lane = 0; lane < kPanel; lane += kStep) {
    for (int64_t d = 0; d < depth; d += kStep) {
      pack_square(panel + d * kPanel + lane, k, first + lane, count - lane, d, depth);
    }
  }
}

inline void pack(const Sequence& sequence, const Workspace& space) {
  const Job& job = sequence.job;
  const Matrix<KEY_SCALAR> k = sequence.k();
  const Matrix<KEY_SCALAR> v = sequence.v();
  for (int64_t first = 0; first < sequence.keys; first += kPanel) {
    const int64_t count = smaller(kPanel, sequence.keys - first);
    pack_panel(space.keys + first * job.depth, k, first, count, job.depth);
  }
  for (int64_t first = 0; first < sequence.keys; first += kKeys) {
    const int64_t count = smaller(kKeys, sequence.keys - first);
    T* block = space.values + first * job.columns();
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t d = 0; d < job.columns(); d += kStep) {
        const int64_t there = larger(0, job.width - d);
        T* to = block + d / kPanel * kPanel * count + j * kPanel + d % kPanel;
        store(to, v.row(first + j).load(d, there));
      }
    }
  }
}

template <int kBit, int... kLane>
inline Vec<T> exchanged(Vec<T> value, LaneList<kLane...>) {
  return __builtin_shufflevector(value, value, (kLane ^ kBit)...);
}

// The largest lane, and the sum of the lanes, in as many steps as the number of lanes has bits.
template <int kBit = static_cast<int>(kStep) / 2>
inline T top_lane(Vec<T> value) {
  const Vec<T> other = exchanged<kBit>(value, LanesOf<kStep>());
  value = value > other ? value : other;
  if constexpr (kBit > 1) {
    return top_lane<kBit / 2>(value);
  } else {
    return value[0];
  }
}
template <int kBit = static_cast<int>(kStep) / 2>
inline T lane_sum(Vec<T> value) {
  value += exchanged<kBit>(value, LanesOf<kStep>());
  if constexpr (kBit > 1) {
    return lane_sum<kBit / 2>(value);
  } else {
    return value[0];
  }
}

// Turns the scores that are seen into e^(score - most) and the others of the row into zeros;
// returns the sum. `most` becomes the largest score so far.
inline T exponentiate(T* row, Range seen, int64_t width, T& most) {
  for (int64_t i = 0; i < seen.begin; ++i) row[i] = kLowest;
  for (int64_t i = seen.end; i < width; ++i) row[i] = kLowest;
  Vec<T> top = load(row);
  for (int64_t i = kStep; i < width; i += kStep) {
    const Vec<T> value = load(row + i);
    top = value > top ? value : top;
  }
  const T now = top_lane(top);
  most = most > now ? most : now;
  if (most == kLowest) {  // the mask hides all of them
    for (int64_t i = 0; i < width; i += kStep) store(row + i, Vec<T>{});
    return 0;
  }
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
inline void meet(const Sequence& sequence, const Workspace& space, int64_t rows, int64_t first,
                 int64_t end, Running& running) {
  const Job& job = sequence.job;
  const int64_t count = smaller(kKeys, sequence.keys - first);
  const int64_t width = round_up(smaller(count, end - first), kPanel);
  const int64_t columns = job.columns();
  const PanelProduct<T> score{space.queries, job.padded_depth(), space.keys + first * job.depth,
                              nullptr,       space.scores,       kKeys,
                              job.depth};
  panel_product(score, 0, rows, 0, width / kPanel);
  T fade[kRows];
  for (int64_t r = 0; r < rows; ++r) {
    T* row = space.scores + r * kKeys;
    Range seen = sequence.seen(running.row[r].row);
    seen = {larger(seen.begin - first, 0), smaller(seen.end - first, smaller(count, width))};
    fade[r] = 1;
    if (seen.begin < seen.end) {
      const T before = running.most[r];
      sequence.hide(running.row[r], first + seen.begin, seen.end - seen.begin, row + seen.begin);
      const T total = exponentiate(row, seen, width, running.most[r]);
      sequence.drop(running.row[r], first + seen.begin, seen.end - seen.begin, row + seen.begin);
      const bool has_met = !running.is_first && before != kLowest;
      if (has_met) fade[r] = exp_nonpositive(splat(before - running.most[r]))[0];
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
        store(space.result + d, multiply_add(load(space.result + d), fade[r], load(mixed + d)));
      }
    }
  }
  running.is_first = false;
}

// Rows [index, index + rows), at most kRows, against all keys that one of them sees.
inline void attend_block(const Sequence& sequence, const Workspace& space, int64_t index,
                         int64_t rows) {
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
    sequence.store_result(running.row[r], space.result + r * columns, running.most[r],
                          running.total[r]);
  }
}

template <class RowOfKeys>
inline T dot(const T* query, RowOfKeys key, int64_t depth) {
  Vec<T> total{};
  for (int64_t d = 0; d < depth; d += kStep) {
    total = multiply_add(load(query + d), key.load(d, depth - d), total);
  }
  return lane_sum(total);
}

// One row that reads keys and values where they lie. The scores are where panels would be.
template <class Keys>
inline void attend_row(const Sequence& sequence, const Keys& k, const Keys& v,
                       const Workspace& space, Row row) {
  const Job& job = sequence.job;
  const Range seen = sequence.seen(row.row);
  const int64_t count = larger(0, seen.end - seen.begin);
  T* scores = space.keys;
  sequence.load_query(row, space.queries);
  T most = kLowest;
  T total = 0;
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = dot(space.queries, k.row(seen.begin + j), job.depth);
  }
  sequence.hide(row, seen.begin, count, scores);
  if (count > 0) total = exponentiate(scores, {0, count}, round_up(count, kPanel), most);
  sequence.drop(row, seen.begin, count, scores);
  for (int64_t d = 0; d < job.columns(); d += kPanel) {
    Vec<T> mixed[kPanelVectors<T>]{};
    for (int64_t j = 0; j < count; ++j) {
      const auto value = v.row(seen.begin + j);
      for (int64_t lane = 0; lane < kPanelVectors<T>; ++lane) {
        const int64_t column = d + lane * kStep;
        const Vec<T> part = value.load(column, larger(0, job.width - column));
        mixed[lane] = multiply_add(scores[j], part, mixed[lane]);
      }
    }
    for (int64_t lane = 0; lane < kPanelVectors<T>; ++lane) {
      store(space.result + d + lane * kStep, mixed[lane]);
    }
  }
  sequence.store_result(row, space.result, most, total);
}

// The few rows of one sequence.
template <class Keys>
inline void attend_rows(const Sequence& sequence, const Keys& k, const Keys& v,
                        const Workspace& space) {
  const int64_t count = sequence.count();
  for (int64_t i = 0; i < count; ++i) attend_row(sequence, k, v, space, sequence.first(i));
}

// Zeros into the rows behind those of a sequence, or behind the last one.
inline void clear_padding(const Sequence& sequence) {
  const Job& job = sequence.job;
  int64_t end = job.rows.padded;
  if (job.rows.cumulative) {
    end = sequence.batch + 1 < job.batch ? sequence.rows : end - job.rows.start(sequence.batch);
  }
  for (int64_t row = sequence.rows; row < end; ++row) {
    for (int64_t i = 0; i < job.group(); ++i) {
      const int64_t head = sequence.shared * job.group() + i;
      __builtin_memset(static_cast<void*>(job.out_row(sequence.batch, head, row)), 0,
                       static_cast<size_t>(job.width) * sizeof(SCALAR));
      job.store_statistics(sequence.batch, head, row, kLowest, 0);
    }
  }
}

// Part `part` of `parts` of the rows of one sequence that share keys.
inline void attend(const Sequence& sequence, const Workspace& space, int64_t part, int64_t parts) {
  if (part == 0) clear_padding(sequence);
  const int64_t count = sequence.count();
  if (count <= kFewRows) {
    if (part != 0) return;
    const Matrix<KEY_SCALAR> k = sequence.k();
    const Matrix<KEY_SCALAR> v = sequence.v();
    if (sequence.keys > 0 && k.is_plain() && v.is_plain()) {
      attend_rows(sequence, PlainMatrix(k), PlainMatrix(v), space);
    } else {
      attend_rows(sequence, k, v, space);
    }
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

// How many pieces the rows that share keys are cut into, so that there are items for threads.
inline int64_t parts_of(const Job& job) {
  const int64_t items = job.batch * job.shared;
  const int64_t wanted = (kItems + items - 1) / items;
  const int64_t rows = job.rows.cumulative ? job.rows.padded / job.batch : job.rows.padded;
  return larger(1, smaller(wanted, rows * job.group() / kRowsWorthAnItem));
}

inline int64_t multiplications(const Job& job) {
  int64_t total = 0;
  for (int64_t b = 0; b < job.batch; ++b) total += job.rows.of(b) * job.keys.of(b);
  return total * job.heads * (job.depth + job.width);
}

// How many workspaces of `size` elements there are at once for so many items.
inline int64_t slots_for(int64_t items, int64_t size) {
  return smaller(items, larger(kItems, smaller(kMostSlots, kMostElements / size)));
}

inline int64_t slots_of(const Job& job) {
  return slots_for(job.batch * job.shared * parts_of(job), Workspace::size(job));
}

// Elements of T that `attend_all` works in.
inline int64_t workspace_size(const Job& job) {
  return job.batch * job.shared == 0 ? 0 : slots_of(job) * Workspace::size(job);
}

inline bool is_empty(const Job& job) {
  return job.batch * job.heads * job.rows.padded * job.width == 0;
}

// Null, or why it failed. `given` has workspace_size(job) elements, or is null.
inline const char* attend_all(const Job& job, const bringup_ctx* ctx, T* given = nullptr) {
  if (is_empty(job)) return nullptr;
  const int64_t parts = parts_of(job);
  const int64_t items = job.batch * job.shared * parts;
  const int64_t slot_size = Workspace::size(job);
  const int64_t slots = slots_of(job);
  T* workspace = given != nullptr ? given : bringup::workspace<T>(ctx, slots * slot_size);
  if (workspace == nullptr) return "no workspace memory left";
  const int64_t work = multiplications(job) / slots;
  bringup::parallel_for(ctx, slots, 1 + kWorthAThread / (work + 1),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t slot = begin; slot < end; ++slot) {
                            const Workspace space(job, workspace + slot * slot_size);
                            for (int64_t item = slot; item < items; item += slots) {
                              attend({job, item / parts / job.shared, item / parts % job.shared},
                                     space, item % parts, parts);
                            }
                          }
                        });
  return nullptr;
}

}  // namespace bringup_kernels::attention
