// Attention in the form of torch's flash attention for the cpu, and its gradient: tensors
// [batch, heads, length, head size], the logarithm of each row's sum of exponentials beside the
// result (Dao et al., arXiv:2205.14135, a row's weights at once). T: all tensors.
#include <cstring>

#include "rows.h"

namespace {

using namespace sim_ops;
using Read = bringup::View<const T, 4>;
using Write = bringup::View<T, 4>;

// A call's shapes and choices.
struct Call {
  const Read q, k, v;
  const bool causal;
  const DLTensor* mask;
  const double scale;

  // Columns that row i sees.
  int64_t columns(int64_t i) const { return causal && i + 1 < k.size(2) ? i + 1 : k.size(2); }

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

// In double, so that gradients that nearly cancel out do.
double dot(const Read& a, const Read& b, int64_t batch, int64_t head, int64_t i, int64_t j) {
  double sum = 0;
  for (int64_t d = 0; d < a.size(3); ++d) {
    sum += static_cast<double>(a(batch, head, i, d)) * b(batch, head, j, d);
  }
  return sum;
}

double scale_of(const void* arg, const Read& q) {
  if (arg != nullptr) return bringup::scalar<double>(arg);
  return 1 / std::sqrt(static_cast<double>(q.size(3)));
}

const DLTensor* optional(const void* arg) { return static_cast<const DLTensor*>(arg); }

void clear(const Write& x) {
  for (int64_t b = 0; b < x.size(0); ++b)
    for (int64_t h = 0; h < x.size(1); ++h)
      for (int64_t i = 0; i < x.size(2); ++i)
        for (int64_t d = 0; d < x.size(3); ++d) x(b, h, i, d) = 0;
}

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

constexpr int64_t kRows = 6;      // queries at a time
constexpr int64_t kColumns = 32;  // numbers of each that stay in registers

// sums[r][j] = sum over k of a[r * a_stride + k] * b[k * width + j], for kRows rows.
template <class E>
void multiply(const E* a, int64_t a_stride, int64_t depth, const E* b, int64_t width,
              int64_t columns, E* sums) {
  int64_t j = 0;
  for (; j + kColumns <= columns; j += kColumns) {
    E kept[kRows][kColumns] = {};
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t r = 0; r < kRows; ++r)
        for (int64_t c = 0; c < kColumns; ++c)
          kept[r][c] += a[r * a_stride + k] * b[k * width + j + c];
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t c = 0; c < kColumns; ++c) sums[r * width + j + c] = kept[r][c];
  }
  for (; j < columns; ++j)
    for (int64_t r = 0; r < kRows; ++r) {
      E sum = 0;
      for (int64_t k = 0; k < depth; ++k) sum += a[r * a_stride + k] * b[k * width + j];
      sums[r * width + j] = sum;
    }
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
  const Write out(args[7]);
  const bringup::View<T, 3> lse(args[8]);
  const Rooms rooms(ctx, call);
  if (rooms.keys == nullptr) return bringup::fail(ctx, "no memory for a head's keys and values");
  const int64_t n = call.k.size(2), size = q.size(3), wide = call.v.size(3);
  for (int64_t b = 0; b < q.size(0); ++b)
    for (int64_t h = 0; h < q.size(1); ++h) {
      pack(call, b, h, rooms);
      for (int64_t i = 0; i < q.size(2); i += kRows) {
        const int64_t rows = q.size(2) - i < kRows ? q.size(2) - i : kRows;
        for (int64_t r = 0; r < kRows; ++r)
          for (int64_t d = 0; d < size; ++d)
            rooms.queries[r * size + d] = r < rows ? q(b, h, i + r, d) : 0;
        multiply(rooms.queries, size, size, rooms.keys, n, n, rooms.scores);
        double sums[kRows];
        for (int64_t r = 0; r < rows; ++r) {
          const double log =
              weigh(call, b, h, i + r, rooms.scores + r * n, rooms.weights + r * n, sums[r]);
          lse(b, h, i + r) = static_cast<T>(log);
        }
        multiply(rooms.weights, n, n, rooms.values, wide, wide, rooms.results);
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
  const bringup::View<const T, 3> lse(args[5]);
  const Write grad_q(args[10]), grad_k(args[11]), grad_v(args[12]);
  clear(grad_q);
  clear(grad_k);
  clear(grad_v);
  for (int64_t b = 0; b < q.size(0); ++b)
    for (int64_t h = 0; h < q.size(1); ++h)
      for (int64_t i = 0; i < q.size(2); ++i) {
        const double row = dot(grad, out, b, h, i, i);  // the sum of each weight times its gradient
        if (std::isinf(lse(b, h, i))) continue;         // the row saw nothing
        for (int64_t j = 0; j < call.columns(i); ++j) {
          const double score = dot(q, call.k, b, h, i, j) * call.scale + call.bias(b, h, i, j);
          const double weight = std::exp(score - lse(b, h, i));
          const double slope = weight * (dot(grad, call.v, b, h, i, j) - row) * call.scale;
          for (int64_t d = 0; d < call.v.size(3); ++d) {
            grad_v(b, h, j, d) += static_cast<T>(weight) * grad(b, h, i, d);
          }
          for (int64_t d = 0; d < q.size(3); ++d) {
            grad_q(b, h, i, d) += static_cast<T>(slope) * call.k(b, h, j, d);
            grad_k(b, h, j, d) += static_cast<T>(slope) * q(b, h, i, d);
          }
        }
      }
  return 0;
}
