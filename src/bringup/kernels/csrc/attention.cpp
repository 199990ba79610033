// bringup::attention(Tensor q, Tensor k, Tensor v, int[] actual_seq_lengths, float scale) -> Tensor
//
// softmax(q k^T * scale) v over sequences of different length in one batch. q, k, v are [B, H, S,
// D] with any strides (a model's transposed views are taken as they are); of sequence b only the
// first actual_seq_lengths[b] rows count: no row looks behind them, and the rows behind them come
// out as zeros. The output is [B, S, H, D], so that joining the heads costs nothing.
//
// One head at a time: keys and values are laid out in panels (panel_gemm.h) in workspace, then both
// products and the softmax between them run on 6 rows of queries that stay in the first-level
// cache.
#include "bringup/kernel.h"
#include "panel_gemm.h"

#ifndef SCALAR
#define SCALAR float
#endif

using namespace bringup_kernels;

namespace {

constexpr int64_t kMostSlots = 64;        // heads in flight; each has its own workspace
constexpr int64_t kWorthAThread = 65536;  // multiplications

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

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
  SCALAR operator()(int64_t row, int64_t column) const {
    return data[row * row_stride + column * column_stride];
  }
};

struct Job {
  Tensor4 q;
  Tensor4 k;
  Tensor4 v;
  bringup::View<SCALAR, 4> out;  // [B, S, H, D]
  bringup::List<int64_t> lengths;
  SCALAR scale;
};

// k^T in panels of 16 keys: [ceil(n / 16), D, 16]; keys behind the last are zeros.
void pack_keys(const Matrix& k, int64_t n, int64_t depth, SCALAR* panels) {
  for (int64_t first = 0; first < n; first += kPanel) {
    SCALAR* panel = panels + first * depth;
    const int64_t count = n - first < kPanel ? n - first : kPanel;
    for (int64_t d = 0; d < depth; ++d) {
      for (int64_t j = 0; j < kPanel; ++j)
        panel[d * kPanel + j] = j < count ? k(first + j, d) : SCALAR(0);
    }
  }
}

// v in panels of 16 columns: [ceil(D / 16), n, 16].
void pack_values(const Matrix& v, int64_t n, int64_t depth, SCALAR* panels) {
  for (int64_t first = 0; first < depth; first += kPanel) {
    SCALAR* panel = panels + first * n;
    const int64_t count = depth - first < kPanel ? depth - first : kPanel;
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t d = 0; d < kPanel; ++d)
        panel[j * kPanel + d] = d < count ? v(j, first + d) : SCALAR(0);
    }
  }
}

// Turns a row of n scores into e^(score - largest), the rest of the row into zeros; returns their
// sum.
SCALAR exponentiate(SCALAR* row, int64_t n, int64_t padded) {
  constexpr int64_t kStep = kLanes<SCALAR>;
  constexpr SCALAR kLowest = -__builtin_huge_val();
  for (int64_t i = n; i < padded; ++i) row[i] = kLowest;
  Vec<SCALAR> top = load(row);
  for (int64_t i = kStep; i < padded; i += kStep) {
    const Vec<SCALAR> value = load(row + i);
    top = value > top ? value : top;
  }
  const SCALAR most = largest<SCALAR>(top);
  Vec<SCALAR> total{};
  for (int64_t i = 0; i < padded; i += kStep) {
    const Vec<SCALAR> value = exp_nonpositive(load(row + i) - most);
    store(row + i, value);
    total += value;
  }
  return sum<SCALAR>(total);
}

// Elements of workspace for one head.
int64_t workspace_size(int64_t length, int64_t depth) {
  const int64_t keys = round_up(length, kPanel);
  const int64_t columns = round_up(depth, kPanel);
  return keys * depth + columns * length + kTileRows * (depth + keys + columns);
}

// One head of one sequence of n tokens.
void attend(const Job& job, int64_t batch, int64_t head, SCALAR* workspace) {
  const int64_t depth = job.q.size(3);
  const int64_t n = job.lengths[batch];
  const int64_t keys = round_up(n, kPanel);
  const int64_t columns = round_up(depth, kPanel);
  const Matrix q(job.q, batch, head);
  SCALAR* key_panels = workspace;
  SCALAR* value_panels = key_panels + keys * depth;
  SCALAR* queries = value_panels + columns * n;
  SCALAR* scores = queries + kTileRows * depth;
  SCALAR* mixed = scores + kTileRows * keys;

  pack_keys(Matrix(job.k, batch, head), n, depth, key_panels);
  pack_values(Matrix(job.v, batch, head), n, depth, value_panels);
  const PanelProduct<SCALAR> score{queries, depth, key_panels, nullptr, scores, keys, depth};
  const PanelProduct<SCALAR> mix{scores, keys, value_panels, nullptr, mixed, columns, n};
  for (int64_t row = 0; row < n; row += kTileRows) {
    const int64_t rows = n - row < kTileRows ? n - row : kTileRows;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t d = 0; d < depth; ++d) queries[r * depth + d] = q(row + r, d) * job.scale;
    }
    panel_product(score, 0, rows, 0, keys / kPanel);
    SCALAR weight[kTileRows];
    for (int64_t r = 0; r < rows; ++r) weight[r] = 1 / exponentiate(scores + r * keys, n, keys);
    panel_product(mix, 0, rows, 0, columns / kPanel);
    for (int64_t r = 0; r < rows; ++r) {
      SCALAR* out = &job.out(batch, row + r, head, 0);
      for (int64_t d = 0; d < depth; ++d) out[d] = mixed[r * columns + d] * weight[r];
    }
  }
  for (int64_t row = n; row < job.q.size(2); ++row) {
    SCALAR* out = &job.out(batch, row, head, 0);
    for (int64_t d = 0; d < depth; ++d) out[d] = 0;
  }
}

// Null when the arguments are right, otherwise why they are not. The operator has compared shapes
// and dtypes.
const char* refusal(const DLTensor& q, const bringup::List<int64_t>& lengths) {
  if (q.ndim != 4) return "q, k and v must be [batch, heads, length, depth]";
  if (lengths.size() != q.shape[0]) {
    return "actual_seq_lengths must have one length for each sequence";
  }
  for (const int64_t length : lengths) {
    if (length < 0 || length > q.shape[2]) {
      return "actual_seq_lengths must lie between 0 and the padded length of q";
    }
  }
  return nullptr;
}

}  // namespace

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const auto lengths = bringup::list<int64_t>(args[3]);
  if (const char* reason = refusal(bringup::tensor(args[0]), lengths)) {
    return bringup::fail(ctx, reason);
  }
  const Job job{Tensor4(args[0]), Tensor4(args[1]),
                Tensor4(args[2]), bringup::View<SCALAR, 4>(args[5]),
                lengths,          bringup::scalar<SCALAR>(args[4])};
  const int64_t length = job.q.size(2);
  const int64_t depth = job.q.size(3);
  const int64_t heads = job.q.size(0) * job.q.size(1);
  if (heads * length * depth == 0) return 0;

  const int64_t slots = heads < kMostSlots ? heads : kMostSlots;
  const int64_t slot_size = workspace_size(length, depth);
  auto* workspace = bringup::workspace<SCALAR>(ctx, slots * slot_size);
  if (workspace == nullptr) return bringup::fail(ctx, "no workspace memory left");
  const int64_t work = (heads + slots - 1) / slots * length * length * depth;
  bringup::parallel_for(
      ctx, slots, 1 + kWorthAThread / (work + 1), [&](int64_t begin, int64_t end) {
        for (int64_t slot = begin; slot < end; ++slot) {
          for (int64_t item = slot; item < heads; item += slots) {
            attend(job, item / job.q.size(1), item % job.q.size(1), workspace + slot * slot_size);
          }
        }
      });
  return 0;
}
