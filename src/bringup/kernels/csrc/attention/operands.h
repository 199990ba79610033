// What attention reads and writes: rows of heads that lie anywhere, also in pages or in two parts,
// and which keys a row sees.
#pragma once

#include "../gemm/operand.h"
#include "../panel_gemm.h"
#include "bringup/kernel.h"

#ifndef SCALAR
#define SCALAR float
#endif
#ifndef KEY_SCALAR  // of keys and values: int8_t where they are quantised
#define KEY_SCALAR SCALAR
#endif

namespace bringup_kernels::attention {

using T = ComputedAs<SCALAR>::type;

constexpr int64_t kStep = kLanes<T>;
constexpr T kLowest = static_cast<T>(-__builtin_huge_val());
constexpr int64_t kUnlimited = int64_t{1} << 40;  // rows and keys: more than there are

constexpr bool kQuantised = !__is_same(SCALAR, KEY_SCALAR);
template <class Element>
constexpr bool kHasFactors = kQuantised && __is_same(Element, KEY_SCALAR);

inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// One tensor's rows: where that of a batch, a head and a number begins, and its elements' distance.
template <class Element>
struct RowsOf {
  const Element* data = nullptr;
  int64_t batch = 0;  // in pages: distance of two pages
  int64_t head = 0;
  int64_t row = 0;
  int64_t column = 0;
};

using Rows = RowsOf<SCALAR>;

// What makes (element + offset) * scale of quantised elements, and the distance of two scales.
struct Factors {
  const void* scale = nullptr;
  const void* offset = nullptr;  // null: 0
  bool is_float = true;          // else SCALAR
  bool in_pages = false;         // `batch` and `row` are those of pages
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
  int64_t column = 0;

  Vec<T> read(const void* from, int64_t place, int64_t count) const {
    return is_float ? load_some<T>(static_cast<const float*>(from) + place, column, count)
                    : load_some<T>(static_cast<const SCALAR*>(from) + place, column, count);
  }
  Vec<T> apply(Vec<T> value, int64_t place, int64_t count) const {
    if (offset != nullptr) value += read(offset, place, count);
    return value * read(scale, place, count);
  }
};

// Rows in pages: row r of sequence b is row r % size of page table[b * stride + r / size].
struct Pages {
  const int32_t* table = nullptr;  // null: rows follow each other
  int64_t stride = 0;
  int64_t size = 1;
};

// Columns from `split` on lie in `second`. `split` is a multiple of kPanel.
template <class Element>
struct PartsOf {
  RowsOf<Element> first;
  RowsOf<Element> second{};
  int64_t split = kUnlimited;
  Factors factors{};
};
using Parts = PartsOf<SCALAR>;

// One row.
template <class Element>
struct RowOf {
  const Element* first;
  const Element* second;
  const PartsOf<Element>* operand;
  int64_t place = 0;  // of the scale of its first column

  const Element* at(int64_t column) const {
    return column < operand->split ? first + column * operand->first.column
                                   : second + (column - operand->split) * operand->second.column;
  }
  // `count` columns from `column`, zeros behind them.
  Vec<T> load(int64_t column, int64_t count) const {
    const auto& rows = column < operand->split ? operand->first : operand->second;
    count = smaller(count, kStep);
    const Vec<T> value = load_some<T>(at(column), rows.column, count);
    if constexpr (kHasFactors<Element>) {
      const Factors& factors = operand->factors;
      return factors.apply(value, place + column * factors.column, count);
    }
    return value;
  }
};

// The rows of one head of one sequence, which begins at row `start`.
template <class Element>
class Matrix {
 public:
  Matrix(const PartsOf<Element>& operand, const Pages& pages, int64_t batch, int64_t head,
         int64_t start)
      : operand_(operand),
        place_(head * operand.factors.head +
               (operand.factors.in_pages ? 0 : batch * operand.factors.batch)),
        size_(pages.size),
        table_(pages.table == nullptr ? nullptr : pages.table + batch * pages.stride),
        first_(begin(operand.first, batch, head, start)),
        second_(begin(operand.second, batch, head, start)) {}

  RowOf<Element> row(int64_t number) const {
    if (table_ == nullptr) {
      return {first_ + number * operand_.first.row, second_ + number * operand_.second.row,
              &operand_, place(number, 0, 0)};
    }
    const auto size = static_cast<uint32_t>(size_);  // a 64-bit division takes three times as long
    const int64_t page = table_[static_cast<uint32_t>(number) / size];
    const int64_t inside = static_cast<uint32_t>(number) % size;
    return {first_ + page * operand_.first.batch + inside * operand_.first.row,
            second_ + page * operand_.second.batch + inside * operand_.second.row, &operand_,
            place(number, page, inside)};
  }
  bool is_plain() const {
    return !kHasFactors<Element> && table_ == nullptr && operand_.second.data == nullptr &&
           operand_.first.column == 1;
  }
  int64_t row_stride() const { return operand_.first.row; }
  bool is_dense(int64_t column, int64_t count) const {
    const bool is_first = column + count <= operand_.split;
    return !kHasFactors<Element> && (is_first ? operand_.first : operand_.second).column == 1;
  }

 private:
  int64_t place(int64_t number, int64_t page, int64_t inside) const {
    if (!kHasFactors<Element>) return 0;
    const Factors& factors = operand_.factors;
    return place_ +
           (factors.in_pages ? page * factors.batch + inside * factors.row : number * factors.row);
  }
  const Element* begin(const RowsOf<Element>& rows, int64_t batch, int64_t head,
                       int64_t start) const {
    if (rows.data == nullptr) return nullptr;
    const int64_t sequence = table_ == nullptr ? batch * rows.batch + start * rows.row : 0;
    return rows.data + sequence + head * rows.head;
  }

  const PartsOf<Element>& operand_;
  int64_t place_;
  int64_t size_;
  const int32_t* table_;
  const Element* first_;
  const Element* second_;
};

// The same where the rows lie densely, in one part, one behind the other: most of what there is.
template <class Element>
class PlainMatrix {
 public:
  struct Row {
    const Element* data;
    Vec<T> load(int64_t column, int64_t count) const {
      return load_some<T>(data + column, 1, smaller(count, kStep));
    }
  };
  explicit PlainMatrix(const Matrix<Element>& matrix)
      : data_(matrix.row(0).first), stride_(matrix.row_stride()) {}
  Row row(int64_t number) const { return {data_ + number * stride_}; }

 private:
  const Element* data_;
  int64_t stride_;
};

struct Range {
  int64_t begin;
  int64_t end;
};

// Bytes that are not zero where a row does not see a key.
struct Mask {
  const uint8_t* data = nullptr;
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
  int64_t key = 0;
};

// A float32 for each row of each head, written `copies` times.
struct Statistic {
  float* data = nullptr;
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
  int64_t copies = 1;

  void store(int64_t b, int64_t h, int64_t r, T value) const {
    if (data == nullptr) return;
    float* to = data + b * batch + h * head + r * row;
    for (int64_t i = 0; i < copies; ++i) to[i] = static_cast<float>(value);
  }
};

// Numbers of rows or keys of the sequences of a batch.
struct Lengths {
  const int64_t* data = nullptr;  // null: all are `padded`
  int64_t count = 0;              // 1: all have the same
  bool cumulative = false;        // ends of sequences that follow each other without padding
  int64_t padded = 0;             // of a sequence; where `cumulative`, of all together

  int64_t start(int64_t b) const { return cumulative && b > 0 ? data[b - 1] : 0; }
  int64_t of(int64_t b) const {
    if (data == nullptr) return padded;
    return cumulative ? data[b] - start(b) : data[count == 1 ? 0 : b];
  }
};

struct Job {
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t shared = 0;  // heads of keys
  int64_t depth = 0;   // of a query
  int64_t width = 0;   // of a value
  Parts q;
  PartsOf<KEY_SCALAR> k;
  PartsOf<KEY_SCALAR> v;
  Pages pages;  // of keys and values
  Rows out;     // its rows are dense
  Lengths rows;
  Lengths keys;
  T scale = 1;
  double kept = 1;  // the part of the weights that dropout keeps, which it divides by
  uint64_t seed = 0;
  // A row sees keys from `before` in front of its position to `after` behind it. Its position is
  // its number, or as if the last row were the last key.
  int64_t before = kUnlimited;
  int64_t after = kUnlimited;
  bool right_aligned = true;
  Mask mask;
  Statistic log_sum;  // log of the sum of e^score
  Statistic most;     // the largest score
  Statistic total;    // the sum of e^(score - largest)

  int64_t group() const { return heads / shared; }  // heads that share keys
  int64_t padded_depth() const { return round_up(depth, kPanel); }
  int64_t columns() const { return round_up(width, kPanel); }
  int64_t most_keys() const {
    int64_t most = 0;
    for (int64_t b = 0; b < batch; ++b) most = larger(most, keys.of(b));
    return most;
  }
  SCALAR* out_row(int64_t b, int64_t h, int64_t row) const {
    return const_cast<SCALAR*>(out.data) + b * out.batch + h * out.head +
           (rows.start(b) + row) * out.row;
  }
  // What is known of a row: the largest score and the sum of e^(score - largest).
  void store_statistics(int64_t b, int64_t h, int64_t row, T largest, T sum) const {
    const int64_t number = rows.start(b) + row;
    most.store(b, h, number, largest);
    total.store(b, h, number, sum);
    if (log_sum.data == nullptr) return;
    log_sum.store(b, h, number, sum == 0 ? kLowest : largest + static_cast<T>(__builtin_log(sum)));
  }
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
  Matrix<SCALAR> q_of(int64_t head) const {
    return {job.q, Pages{}, batch, head, job.rows.start(batch)};
  }
  Matrix<KEY_SCALAR> k() const { return {job.k, job.pages, batch, shared, job.keys.start(batch)}; }
  Matrix<KEY_SCALAR> v() const { return {job.v, job.pages, batch, shared, job.keys.start(batch)}; }

  Sequence(const Job& of, int64_t b, int64_t key_head)
      : job(of), batch(b), shared(key_head), rows(of.rows.of(b)), keys(of.keys.of(b)) {}

  int64_t count() const { return rows * job.group(); }
  Row first(int64_t index) const { return {shared * job.group() + index / rows, index % rows}; }
  Row next(Row row) const {  // divisions take longer than all else that finds a row
    return row.row + 1 < rows ? Row{row.head, row.row + 1} : Row{row.head + 1, 0};
  }
  // The keys that it sees, the mask aside.
  Range seen(int64_t row) const {
    const int64_t position = row + (job.right_aligned ? keys - rows : 0);
    return {larger(0, position - job.before), smaller(keys, larger(0, position + job.after + 1))};
  }
  // Sets scores of keys [first, first + count) that the mask hides to the lowest.
  void hide(Row row, int64_t first, int64_t count, T* scores) const {
    const Mask& mask = job.mask;
    if (mask.data == nullptr) return;
    const uint8_t* from =
        mask.data + batch * mask.batch + row.head * mask.head + row.row * mask.row;
    for (int64_t i = 0; i < count; ++i) {
      if (from[(first + i) * mask.key] != 0) scores[i] = kLowest;
    }
  }
  // What dropout makes of a weight: none, or one over the part that it keeps. A number for each
  // row and key, so that forward and backward drop the same (Steele, Lea, Flood: Fast Splittable
  // Pseudorandom Number Generators, 2014).
  T kept(Row row, int64_t key) const {
    if (job.kept == 1) return 1;
    const int64_t before = job.rows.cumulative ? job.rows.start(batch) : batch * job.rows.padded;
    const int64_t number = ((before + row.row) * job.heads + row.head) * job.keys.padded + key;
    uint64_t bits = job.seed + static_cast<uint64_t>(number + 1) * 0x9e3779b97f4a7c15u;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
    bits ^= bits >> 31;
    return static_cast<double>(bits >> 11) < job.kept * 0x1p53 ? static_cast<T>(1 / job.kept) : 0;
  }
  void drop(Row row, int64_t first, int64_t count, T* weights) const {
    if (job.kept == 1) return;
    for (int64_t i = 0; i < count; ++i) weights[i] *= kept(row, first + i);
  }
  void load_query(Row row, T* to) const {
    const Matrix<SCALAR> q = q_of(row.head);
    const RowOf<SCALAR> from = q.row(row.row);
    for (int64_t d = 0; d < job.padded_depth(); d += kStep) {
      store(to + d, from.load(d, larger(0, job.depth - d)) * job.scale);
    }
  }
  // The mixed values of a row over the sum of their weights; 0 for a row that sees no key.
  void store_result(Row row, const T* mixed, T largest, T total) const {
    SCALAR* out = job.out_row(batch, row.head, row.row);
    const T weight = total == 0 ? 0 : 1 / total;
    for (int64_t d = 0; d < job.width; d += kStep) {
      store_some<T>(out + d, load(mixed + d) * weight, smaller(job.width - d, kStep));
    }
    job.store_statistics(batch, row.head, row.row, largest, total);
  }
};

}  // namespace bringup_kernels::attention
