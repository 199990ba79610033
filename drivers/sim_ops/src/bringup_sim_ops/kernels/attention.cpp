// Attention in the form of torch's flash attention for the cpu, and its gradient: tensors
// [batch, heads, length, head size], the logarithm of each row's sum of exponentials beside the
// result (Dao et al., arXiv:2205.14135, a row's weights at once). T: all tensors.
#include <cstring>

#include "rows.h"

namespace {

using namespace sim_ops;
using Read = bringup::View<const T, 4>;
using Write = bringup::View<T, 4>;

constexpr int64_t kRows = 6;     // queries at a time
constexpr int64_t kColumns = 8;  // sums of each that stay in registers

// A call's shapes and choices.
struct Call {
  const Read q, k, v;
  const bool causal;
  const DLTensor* mask;
  const double scale;

  // Heads of queries that share one of keys and values.
  int64_t group() const { return q.size(1) / k.size(1); }

  // What would read or write beside the tensors, or null.
  const char* refusal() const {
    if (k.size(0) != q.size(0) || v.size(0) != q.size(0)) return "the batches differ";
    if (v.size(1) != k.size(1) || v.size(2) != k.size(2)) return "keys and values differ in shape";
    if (k.size(3) != q.size(3)) return "keys and queries differ in size";
    if (k.size(1) == 0 ? q.size(1) != 0 : q.size(1) % k.size(1) != 0)
      return "the heads of the keys do not divide those of the queries";
    const int64_t shape[4] = {q.size(0), q.size(1), q.size(2), k.size(2)};
    for (int32_t d = 0; mask != nullptr && d < mask->ndim; ++d)
      if (mask->shape[d] != 1 && mask->shape[d] != shape[4 - mask->ndim + d])
        return "the mask does not fit the scores";
    return nullptr;
  }

  // Columns that row i sees.
  int64_t columns(int64_t i) const { return causal && i + 1 < k.size(2) ? i + 1 : k.size(2); }

  // The same up to a whole number of vectors, or all.
  int64_t whole_columns(int64_t i) const {
    const int64_t whole = (columns(i) + kColumns - 1) / kColumns * kColumns;
    return whole < k.size(2) ? whole : k.size(2);
  }

  // What is added to a score: masks are broadcast.
  T bias(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (mask == nullptr) return T(0);
    const int64_t index[4] = {b, h, i, j};
    int64_t offset = 0;
    for (int32_t d = 0; d < mask->ndim; ++d) {
      const int32_t of = 4 - mask->ndim + d;
      if (mask->shape[d] != 1) offset += index[of] * mask->strides[d];
    }
    return static_cast<const T*>(mask->data)[offset];
  }
};

double scale_of(const void* arg, const Read& q) {
  if (arg != nullptr) return bringup::scalar<double>(arg);
  return 1 / std::sqrt(static_cast<double>(q.size(3)));
}

const DLTensor* optional(const void* arg) { return static_cast<const DLTensor*>(arg); }

// e^x for x <= 0 without a call, so that loops over it are vectorised: 2^n times a polynomial for
// what is left of x / ln 2 (Cephes, expf). NaN stays NaN, what is below the normal numbers is 0.
inline float exponential(float x) {
  const float places = std::floor(x * 1.44269504f + 0.5f);
  const float r = (x - places * 0.693359375f) + places * 2.12194440e-4f;
  float sum = 1.9875691500e-4f;
  sum = sum * r + 1.3981999507e-3f;
  sum = sum * r + 8.3334519073e-3f;
  sum = sum * r + 4.1665795894e-2f;
  sum = sum * r + 1.6666665459e-1f;
  sum = sum * r + 5.0000001201e-1f;
  sum = sum * r * r + r + 1.0f;
  const float least = -87.0f;
  const float exponent = places > -126.0f ? places : -126.0f;
  const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(exponent) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return x != x ? x : x < least ? 0.0f : sum * power;
}
inline double exponential(double x) { return std::exp(x); }

// Numbers side by side: compilers unroll loops over so few, and then do not vectorise them.
template <class E, int64_t Columns>
struct Side {
  typedef E Vector
      __attribute__((vector_size(Columns * sizeof(E)), aligned(alignof(E)), may_alias));
};

// From column `j` on; returns the first of those that are too few.
template <int64_t Columns, class E>
int64_t multiply(const E* a, int64_t a_stride, int64_t depth, const E* b, int64_t width, int64_t j,
                 int64_t columns, E* sums) {
  using Vector = typename Side<E, Columns>::Vector;
  for (; j + Columns <= columns; j += Columns) {
    Vector kept[kRows] = {};
    for (int64_t k = 0; k < depth; ++k) {
      const Vector row = *reinterpret_cast<const Vector*>(b + k * width + j);
      for (int64_t r = 0; r < kRows; ++r) kept[r] += a[r * a_stride + k] * row;
    }
    for (int64_t r = 0; r < kRows; ++r) *reinterpret_cast<Vector*>(sums + r * width + j) = kept[r];
  }
  return j;
}

// sums[r][j] = sum over k of a[r * a_stride + k] * b[k * width + j], for kRows rows.
template <class E>
void multiply(const E* a, int64_t a_stride, int64_t depth, const E* b, int64_t width,
              int64_t columns, E* sums) {
  const int64_t j = multiply<kColumns>(a, a_stride, depth, b, width, 0, columns, sums);
  multiply<1>(a, a_stride, depth, b, width, j, columns, sums);
}

// What a head is computed in. Scores are in double: their exponentials magnify what is rounded.
struct Rooms {
  double* keys;     // transposed: [size of a key][keys]
  double* queries;  // [kRows][size of a key]
  double* scores;   // [kRows][keys]
  T* values;        // [keys][size of a value]
  T* weights;       // [kRows][keys]
  T* results;       // [kRows][size of a value]

  Rooms(const bringup_ctx* ctx, const Call& call) {
    const int64_t n = call.k.size(2), size = call.k.size(3), wide = call.v.size(3);
    // A T takes no more than a double.
    keys = bringup::workspace<double>(ctx, (n + kRows) * (size + wide) + 2 * kRows * n);
    if (keys == nullptr) return;
    queries = keys + n * size;
    scores = queries + kRows * size;
    values = reinterpret_cast<T*>(scores + kRows * n);
    weights = values + n * wide;
    results = weights + kRows * n;
  }
};

void pack(const Call& call, int64_t b, int64_t h, const Rooms& rooms) {
  const int64_t n = call.k.size(2), size = call.k.size(3), wide = call.v.size(3);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t d = 0; d < size; ++d) rooms.keys[d * n + j] = call.k(b, h, j, d);
    for (int64_t d = 0; d < wide; ++d) rooms.values[j * wide + d] = call.v(b, h, j, d);
  }
}

// Of several parts side by side, which compilers do not do with floating point numbers themselves.
constexpr int64_t kParts = 32;

// NaN where there is one: it adds up to NaN.
double greatest(const double* row, int64_t n) {
  double parts[kParts], nan = 0;
  for (double& part : parts) part = -std::numeric_limits<double>::infinity();
  int64_t j = 0;
  for (; j + kParts <= n; j += kParts)
    for (int64_t p = 0; p < kParts; ++p) parts[p] = row[j + p] <= parts[p] ? parts[p] : row[j + p];
  for (; j < n; ++j) parts[0] = row[j] <= parts[0] ? parts[0] : row[j];
  double best = parts[0];
  for (const double part : parts) {
    if (part > best) best = part;
    if (part != part) nan = part;
  }
  return best + nan;
}

double total(const T* row, int64_t n) {
  double parts[kParts] = {};
  int64_t j = 0;
  for (; j + kParts <= n; j += kParts)
    for (int64_t p = 0; p < kParts; ++p) parts[p] += row[j + p];
  for (; j < n; ++j) parts[0] += row[j];
  double sum = 0;
  for (const double part : parts) sum += part;
  return sum;
}

// Makes weights of a row's scores; returns the logarithm of the sum of their exponentials and, in
// `sum`, the sum itself, by which results are divided.
double weigh(const Call& call, int64_t b, int64_t h, int64_t i, double* scores, T* weights,
             double& sum) {
  const int64_t seen = call.columns(i), n = call.k.size(2);
  for (int64_t j = 0; j < seen; ++j) scores[j] *= call.scale;
  for (int64_t j = 0; call.mask != nullptr && j < seen; ++j) scores[j] += call.bias(b, h, i, j);
  const double largest = greatest(scores, seen);
  const double shift = std::isinf(largest) && largest < 0 ? 0 : largest;
  for (int64_t j = 0; j < seen; ++j) weights[j] = exponential(static_cast<T>(scores[j] - shift));
  sum = total(weights, seen);
  for (int64_t j = seen; j < n; ++j) weights[j] = 0;
  return shift + std::log(sum);
}

// What the gradients of a head are computed in. Scores and the gradients of weights are in double,
// so that gradients that nearly cancel out do.
struct BackwardRooms {
  double* keys;        // transposed: [size of a key][keys]
  double* values;      // transposed: [size of a value][keys]
  double* queries;     // [kRows][size of a key]
  double* grads;       // [kRows][size of a value]
  double* scores;      // [kRows][keys]
  double* of_weights;  // [kRows][keys]: gradients of the weights
  T* key_rows;         // [keys][size of a key]
  T* weights;          // [kRows][keys]
  T* slopes;           // [kRows][keys]: gradients of the scores
  T* results;          // [kRows][size of a key]
  T* grad_keys;        // [keys][size of a key], sums
  T* grad_values;      // [keys][size of a value], sums

  BackwardRooms(const bringup_ctx* ctx, const Call& call) {
    const int64_t n = call.k.size(2), size = call.k.size(3), wide = call.v.size(3);
    const int64_t doubles = (n + kRows) * (size + wide) + 2 * kRows * n;
    const int64_t others = n * (2 * size + wide) + 2 * kRows * n + kRows * size;
    keys = bringup::workspace<double>(ctx, doubles + others);  // a T takes no more than a double
    if (keys == nullptr) return;
    values = keys + n * size;
    queries = values + n * wide;
    grads = queries + kRows * size;
    scores = grads + kRows * wide;
    of_weights = scores + kRows * n;
    key_rows = reinterpret_cast<T*>(keys + doubles);
    weights = key_rows + n * size;
    slopes = weights + kRows * n;
    results = slopes + kRows * n;
    grad_keys = results + kRows * size;
    grad_values = grad_keys + n * size;
  }
};

void pack(const Call& call, int64_t b, int64_t h, const BackwardRooms& rooms) {
  const int64_t n = call.k.size(2), size = call.k.size(3), wide = call.v.size(3);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t d = 0; d < size; ++d) {
      rooms.keys[d * n + j] = rooms.key_rows[j * size + d] = call.k(b, h, j, d);
      rooms.grad_keys[j * size + d] = 0;
    }
    for (int64_t d = 0; d < wide; ++d) {
      rooms.values[d * n + j] = call.v(b, h, j, d);
      rooms.grad_values[j * wide + d] = 0;
    }
  }
}

// As multiply.
template <int64_t Columns>
int64_t add_products(const T* a, int64_t n, int64_t seen, const double* b, int64_t width, int64_t d,
                     T* sums) {
  using Vector = typename Side<T, Columns>::Vector;
  for (; d + Columns <= width; d += Columns) {
    Vector rows[kRows];
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t c = 0; c < Columns; ++c) rows[r][c] = static_cast<T>(b[r * width + d + c]);
    for (int64_t j = 0; j < seen; ++j) {
      Vector sum = {};
      for (int64_t r = 0; r < kRows; ++r) sum += a[r * n + j] * rows[r];
      *reinterpret_cast<Vector*>(sums + j * width + d) += sum;
    }
  }
  return d;
}

// sums[j][d] += sum over r of a[r][j] * b[r][d], for kRows rows of n and of `width` numbers.
void add_products(const T* a, int64_t n, int64_t seen, const double* b, int64_t width, T* sums) {
  const int64_t d = add_products<kColumns>(a, n, seen, b, width, 0, sums);
  add_products<1>(a, n, seen, b, width, d, sums);
}

// Makes a row's weights and the gradients of its scores from scores, gradients of weights and
// `row`, the sum of each weight times its gradient. A row that saw nothing has none.
void slope(const Call& call, int64_t b, int64_t h, int64_t i, double lse, double row,
           int64_t columns, const double* scores, const double* of_weights, T* weights, T* slopes) {
  const int64_t seen = std::isinf(lse) ? 0 : call.columns(i);
  for (int64_t j = 0; j < seen; ++j) {
    double score = scores[j] * call.scale;
    if (call.mask != nullptr) score += call.bias(b, h, i, j);
    weights[j] = exponential(static_cast<T>(score - lse));
  }
  for (int64_t j = 0; j < seen; ++j) {
    slopes[j] = static_cast<T>(weights[j] * (of_weights[j] - row) * call.scale);
  }
  for (int64_t j = seen; j < columns; ++j) weights[j] = slopes[j] = 0;
}

}  // namespace

// query, key, value, dropout_p, is_causal, attn_mask?, scale?, out, logsumexp
BRINGUP_EXPORT int32_t attention(void** args, int32_t, const bringup_ctx* ctx) {
  const Read q(args[0]);
  const Call call{q,
                  Read(args[1]),
                  Read(args[2]),
                  bringup::scalar<bool>(args[4]),
                  optional(args[5]),
                  scale_of(args[6], q)};
  if (bringup::scalar<double>(args[3]) != 0) return bringup::fail(ctx, "no dropout here");
  if (const char* reason = call.refusal()) return bringup::fail(ctx, reason);
  const Write out(args[7]);
  const bringup::View<T, 3> lse(args[8]);
  const Rooms rooms(ctx, call);
  if (rooms.keys == nullptr) return bringup::fail(ctx, "no memory for a head's keys and values");
  const int64_t n = call.k.size(2), size = q.size(3), wide = call.v.size(3);
  for (int64_t b = 0; b < q.size(0); ++b)
    for (int64_t h = 0; h < q.size(1); ++h) {
      if (h % call.group() == 0) pack(call, b, h / call.group(), rooms);
      for (int64_t i = 0; i < q.size(2); i += kRows) {
        const int64_t rows = q.size(2) - i < kRows ? q.size(2) - i : kRows;
        for (int64_t r = 0; r < kRows; ++r)
          for (int64_t d = 0; d < size; ++d)
            rooms.queries[r * size + d] = r < rows ? q(b, h, i + r, d) : 0;
        const int64_t seen = call.whole_columns(i + rows - 1);  // by any of them, and some more
        multiply(rooms.queries, size, size, rooms.keys, n, seen, rooms.scores);
        double sums[kRows];
        for (int64_t r = 0; r < rows; ++r) {
          const double log =
              weigh(call, b, h, i + r, rooms.scores + r * n, rooms.weights + r * n, sums[r]);
          lse(b, h, i + r) = static_cast<T>(log);
        }
        multiply(rooms.weights, n, seen, rooms.values, wide, wide, rooms.results);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t d = 0; d < wide; ++d) {
            const T result = rooms.results[r * wide + d];  // a row that sees nothing: 0
            out(b, h, i + r, d) = static_cast<T>(sums[r] == 0 ? 0 : result / sums[r]);
          }
      }
    }
  return 0;
}

// grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask?, scale?,
// grad_query, grad_key, grad_value
BRINGUP_EXPORT int32_t attention_backward(void** args, int32_t, const bringup_ctx* ctx) {
  const Read grad(args[0]), q(args[1]), out(args[4]);
  const Call call{q,
                  Read(args[2]),
                  Read(args[3]),
                  bringup::scalar<bool>(args[7]),
                  optional(args[8]),
                  scale_of(args[9], q)};
  if (bringup::scalar<double>(args[6]) != 0) return bringup::fail(ctx, "no dropout here");
  if (const char* reason = call.refusal()) return bringup::fail(ctx, reason);
  const DLTensor &of_out = bringup::tensor(args[4]), &of_lse = bringup::tensor(args[5]);
  const bool fits = alike(bringup::tensor(args[0]), of_out) && out.size(0) == q.size(0) &&
                    out.size(1) == q.size(1) && out.size(2) == q.size(2) &&
                    out.size(3) == call.v.size(3) && of_lse.ndim == 3 &&
                    of_lse.shape[0] == q.size(0) && of_lse.shape[1] == q.size(1) &&
                    of_lse.shape[2] == q.size(2);
  if (!fits) return bringup::fail(ctx, "the gradient, the output and its rows differ in shape");
  const bringup::View<const T, 3> lse(args[5]);
  const Write grad_q(args[10]), grad_k(args[11]), grad_v(args[12]);
  const BackwardRooms rooms(ctx, call);
  if (rooms.keys == nullptr) return bringup::fail(ctx, "no memory for a head's gradients");
  const int64_t n = call.k.size(2), size = q.size(3), wide = call.v.size(3);
  for (int64_t b = 0; b < q.size(0); ++b)
    for (int64_t h = 0; h < q.size(1); ++h) {
      const int64_t shared = h / call.group();
      if (h % call.group() == 0) pack(call, b, shared, rooms);
      for (int64_t i = 0; i < q.size(2); i += kRows) {
        const int64_t rows = q.size(2) - i < kRows ? q.size(2) - i : kRows;
        const int64_t seen = call.whole_columns(i + rows - 1);  // by any of them, and some more
        for (int64_t r = 0; r < kRows; ++r) {
          for (int64_t d = 0; d < size; ++d)
            rooms.queries[r * size + d] = r < rows ? q(b, h, i + r, d) : 0;
          for (int64_t d = 0; d < wide; ++d)
            rooms.grads[r * wide + d] = r < rows ? grad(b, h, i + r, d) : 0;
        }
        multiply(rooms.queries, size, size, rooms.keys, n, seen, rooms.scores);
        multiply(rooms.grads, wide, wide, rooms.values, n, seen, rooms.of_weights);
        for (int64_t r = 0; r < kRows; ++r) {
          double row = 0;
          for (int64_t d = 0; r < rows && d < wide; ++d)
            row += rooms.grads[r * wide + d] * out(b, h, i + r, d);
          const double none = std::numeric_limits<double>::infinity();
          slope(call, b, h, i + r, r < rows ? lse(b, h, i + r) : none, row, seen,
                rooms.scores + r * n, rooms.of_weights + r * n, rooms.weights + r * n,
                rooms.slopes + r * n);
        }
        multiply(rooms.slopes, n, seen, rooms.key_rows, size, size, rooms.results);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t d = 0; d < size; ++d) grad_q(b, h, i + r, d) = rooms.results[r * size + d];
        add_products(rooms.slopes, n, seen, rooms.queries, size, rooms.grad_keys);
        add_products(rooms.weights, n, seen, rooms.grads, wide, rooms.grad_values);
      }
      for (int64_t j = 0; (h + 1) % call.group() == 0 && j < n; ++j) {  // of the whole group
        for (int64_t d = 0; d < size; ++d) grad_k(b, shared, j, d) = rooms.grad_keys[j * size + d];
        for (int64_t d = 0; d < wide; ++d)
          grad_v(b, shared, j, d) = rooms.grad_values[j * wide + d];
      }
    }
  return 0;
}
