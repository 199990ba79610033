// Attention in the form of torch's flash attention for the cpu, and its gradient: tensors
// [batch, heads, length, head size], the logarithm of each row's sum of exponentials beside the
// result (Dao et al., arXiv:2205.14135, without its tiles). T: all tensors.
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
  double* weights = bringup::workspace<double>(ctx, call.k.size(2) + call.v.size(3));
  if (weights == nullptr)
    return bringup::fail(ctx, "no memory for a row of weights and one of results");
  double* const row = weights + call.k.size(2);
  for (int64_t b = 0; b < q.size(0); ++b)
    for (int64_t h = 0; h < q.size(1); ++h)
      for (int64_t i = 0; i < q.size(2); ++i) {
        double largest = -std::numeric_limits<double>::infinity();
        for (int64_t j = 0; j < call.columns(i); ++j) {
          weights[j] = dot(q, call.k, b, h, i, j) * call.scale + call.bias(b, h, i, j);
          if (!(weights[j] <= largest)) largest = weights[j];
        }
        const double shift = std::isinf(largest) && largest < 0 ? 0 : largest;
        double sum = 0;
        for (int64_t d = 0; d < call.v.size(3); ++d) row[d] = 0;
        for (int64_t j = 0; j < call.columns(i); ++j) {
          const double weight = std::exp(weights[j] - shift);
          sum += weight;
          for (int64_t d = 0; d < call.v.size(3); ++d) row[d] += weight * call.v(b, h, j, d);
        }
        for (int64_t d = 0; d < call.v.size(3); ++d) {
          out(b, h, i, d) = static_cast<T>(sum == 0 ? 0 : row[d] / sum);  // that sees nothing: 0
        }
        lse(b, h, i) = static_cast<T>(shift + std::log(sum));
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
