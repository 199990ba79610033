// bringup::attention(Tensor q, Tensor k, Tensor v, int[] actual_seq_lengths, float scale, bool
// causal, int window, int[]? actual_seq_lengths_kv) -> Tensor
//
// softmax(q k^T * scale) v over sequences of different length in one batch. q is [B, H, S, D], k
// and v are [B, G, K, D] and [B, G, K, E], H a multiple of G, with any strides (a model's
// transposed views are taken as they are). Of sequence b the first actual_seq_lengths[b] rows and
// the first actual_seq_lengths_kv[b] keys count: nothing looks behind them, and rows behind them,
// or that see no key, come out as zeros. The rows are the last ones of the keys: row i has position
// i + keys - rows. The output is [B, S, H, E], so that joining the heads costs nothing.
#include "attention/engine.h"

using namespace bringup_kernels;
using namespace bringup_kernels::attention;

namespace {

Rows rows_of(const DLTensor& t) {  // [B, H, S, D]
  return {static_cast<const SCALAR*>(t.data), t.strides[0], t.strides[1], t.strides[2],
          t.strides[3]};
}

// Null when the lengths fit, otherwise why they do not. The operator has compared the shapes that
// one tensor shares with another.
const char* refused_lengths(const Job& job, bool causal) {
  if (job.rows.count != job.batch) {
    return "actual_seq_lengths must have one length for each sequence";
  }
  if (job.keys.count != job.batch) {
    return "actual_seq_lengths_kv must have one length for each sequence";
  }
  for (int64_t b = 0; b < job.batch; ++b) {
    const int64_t rows = job.rows.of(b);
    const int64_t keys = job.keys.of(b);
    if (rows < 0 || rows > job.rows.padded) {
      return "actual_seq_lengths must lie between 0 and the padded length of q";
    }
    if (keys < 0 || keys > job.keys.padded) {
      return "actual_seq_lengths_kv (actual_seq_lengths, where it is not given) must lie between 0 "
             "and the padded length of k";
    }
    if (causal && keys < rows) {
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

}  // namespace

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  if (const char* reason = refused_shapes(args)) return bringup::fail(ctx, reason);
  const DLTensor& q = bringup::tensor(args[0]);
  const DLTensor& k = bringup::tensor(args[1]);
  const DLTensor& v = bringup::tensor(args[2]);
  const DLTensor& out = bringup::tensor(args[8]);
  const auto lengths = bringup::list<int64_t>(args[3]);
  const auto key_lengths = args[7] == nullptr ? lengths : bringup::list<int64_t>(args[7]);
  const bool causal = bringup::scalar<bool>(args[5]);
  const int64_t window = bringup::scalar<int64_t>(args[6]);
  Job job;
  job.batch = q.shape[0];
  job.heads = q.shape[1];
  job.shared = k.shape[1];
  job.depth = q.shape[3];
  job.width = v.shape[3];
  job.q = {rows_of(q)};
  job.k = {rows_of(k)};
  job.v = {rows_of(v)};
  job.out = {static_cast<const SCALAR*>(out.data), out.strides[0], out.strides[2], out.strides[1],
             1};
  job.rows = {lengths.begin(), lengths.size(), false, q.shape[2]};
  job.keys = {key_lengths.begin(), key_lengths.size(), false, k.shape[2]};
  job.scale = bringup::scalar<T>(args[4]);
  if (window > 0) job.before = job.after = smaller(window - 1, kUnlimited);
  if (causal) job.after = 0;
  if (const char* reason = refused_lengths(job, causal)) return bringup::fail(ctx, reason);
  if (const char* reason = attend_all(job, ctx)) return bringup::fail(ctx, reason);
  return 0;
}
