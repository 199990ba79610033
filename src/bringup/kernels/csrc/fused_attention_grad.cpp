// npu::npu_fusion_attention_grad_v3.out: the gradients of query, key and value. Weights are
// computed again from the largest score and the sum that the forward kept for each row. The heads
// that share keys are one item, which sums the gradients of its keys and values in workspace. The
// arguments come by macros (attention/layouts.h).
#include "attention/fused.h"

using namespace bringup_kernels;
using namespace bringup_kernels::attention;

namespace {

struct Gradients {
  Parts out;       // of the result
  Parts result;    // of the forward
  Statistic most;  // only read
  Statistic total;
  Rows query;  // written
  Rows key;
  Rows value;
};

bool read_like(void* arg, const char* layout, int64_t heads, int64_t rows, int64_t depth,
               Rows& to) {
  Shaped lie;
  const bool fits = read_operand(bringup::tensor(arg), layout, heads, lie) && lie.rows == rows &&
                    lie.depth == depth;
  to = lie.lie;
  return fits;
}

const char* describe_gradients(void** args, Job& job, Gradients& gradients) {
  int64_t pages = 0;
  if (const char* why = describe_inputs(args, job, pages)) return why;
  if (!is_given(args, ARG_MOST) || !is_given(args, ARG_TOTAL) || !is_given(args, ARG_RESULT)) {
    return "softmax_max, softmax_sum and attention_in of the forward are needed";
  }
  const char* layout = bringup::text(args[ARG_LAYOUT]);
  const int64_t rows = job.rows.padded;
  const int64_t keys = job.keys.padded;
  Gradients& to = gradients;
  const bool is_like =
      read_like(args[ARG_DY], layout, job.heads, rows, job.width, to.out.first) &&
      read_like(args[ARG_RESULT], layout, job.heads, rows, job.width, to.result.first) &&
      read_like(args[ARG_DQ], layout, job.heads, rows, job.depth, to.query) &&
      read_like(args[ARG_DK], layout, job.shared, keys, job.depth, to.key) &&
      read_like(args[ARG_DV], layout, job.shared, keys, job.width, to.value);
  if (!is_like) {
    return "dy and attention_in have the shape of the forward's result, dq, dk and dv those of its "
           "inputs";
  }
  if (to.query.column != 1 || to.key.column != 1 || to.value.column != 1) {
    return "the last dimension of dq, dk and dv must be dense";
  }
  const bool fits = read_statistic(bringup::tensor(args[ARG_MOST]), job, gradients.most) &&
                    read_statistic(bringup::tensor(args[ARG_TOTAL]), job, gradients.total);
  return fits ? nullptr : "softmax_max and softmax_sum are not those of the forward";
}

// What one item works in: sums over the rows of all heads that share its keys.
struct Sums {
  T* keys;    // [keys, padded depth]
  T* values;  // [keys, columns]
  T* query;   // [padded depth], of one row
  T* dquery;
  T* dout;  // [columns]
  T* scores;

  static int64_t size(const Job& job) {
    const int64_t keys = round_up(larger(1, job.most_keys()), kPanel);
    return keys * (job.padded_depth() + job.columns() + 1) + 2 * job.padded_depth() + job.columns();
  }
  Sums(const Job& job, T* memory) : keys(memory) {
    const int64_t length = round_up(larger(1, job.most_keys()), kPanel);
    values = keys + length * job.padded_depth();
    query = values + length * job.columns();
    dquery = query + job.padded_depth();
    dout = dquery + job.padded_depth();
    scores = dout + job.columns();
  }
};

void add_scaled(T* to, const T* from, T factor, int64_t count) {
  for (int64_t i = 0; i < count; i += kStep) {
    store(to + i, multiply_add(factor, load(from + i), load(to + i)));
  }
}

void load_all(RowOf<SCALAR> from, int64_t count, T* to) {
  for (int64_t i = 0; i < round_up(count, kPanel); i += kStep) {
    store(to + i, from.load(i, larger(0, count - i)));
  }
}

void store_all(const Rows& rows, int64_t batch, int64_t head, int64_t row, const T* from,
               int64_t count) {
  SCALAR* to =
      const_cast<SCALAR*>(rows.data) + batch * rows.batch + head * rows.head + row * rows.row;
  for (int64_t i = 0; i < count; i += kStep) {
    store_some<T>(to + i, load(from + i), smaller(count - i, kStep));
  }
}

float of(const Statistic& statistic, int64_t b, int64_t h, int64_t r) {
  return statistic.data[b * statistic.batch + h * statistic.head + r * statistic.row];
}

// One row of queries: its gradient, and its part of those of keys and values.
void add_row(const Sequence& sequence, const Gradients& gradients, const Sums& sums, Row row) {
  const Job& job = sequence.job;
  const int64_t start = job.rows.start(sequence.batch);
  const Matrix<SCALAR> k = sequence.k();
  const Matrix<SCALAR> v = sequence.v();
  const Matrix<SCALAR> dy(gradients.out, Pages{}, sequence.batch, row.head, start);
  const Matrix<SCALAR> result(gradients.result, Pages{}, sequence.batch, row.head, start);
  const Range seen = sequence.seen(row.row);
  const int64_t count = larger(0, seen.end - seen.begin);
  const T total = of(gradients.total, sequence.batch, row.head, start + row.row);
  const T most = of(gradients.most, sequence.batch, row.head, start + row.row);
  __builtin_memset(sums.dquery, 0, sizeof(T) * static_cast<size_t>(job.padded_depth()));
  if (count > 0 && total > 0) {
    sequence.load_query(row, sums.query);
    load_all(dy.row(row.row), job.width, sums.dout);
    for (int64_t j = 0; j < count; ++j) {
      sums.scores[j] = dot(sums.query, k.row(seen.begin + j), job.depth);
    }
    sequence.hide(row, seen.begin, count, sums.scores);
    for (int64_t j = 0; j < count; j += kStep) {  // the buffer goes on behind `count`
      store(sums.scores + j, exp_nonpositive(load(sums.scores + j) - most) / total);
    }
    const T mean = dot(sums.dout, result.row(row.row), job.width);  // of dy v over the weights
    for (int64_t j = 0; j < count; ++j) {
      const int64_t key = seen.begin + j;
      const T weight = sums.scores[j];
      if (weight == 0) continue;
      const T kept = sequence.kept(row, key);
      const T slope = weight * (kept * dot(sums.dout, v.row(key), job.width) - mean);
      add_scaled(sums.values + key * job.columns(), sums.dout, weight * kept, job.columns());
      add_scaled(sums.keys + key * job.padded_depth(), sums.query, slope, job.padded_depth());
      const RowOf<SCALAR> from = k.row(key);
      for (int64_t d = 0; d < job.padded_depth(); d += kStep) {
        const Vec<T> part = from.load(d, larger(0, job.depth - d));
        store(sums.dquery + d, multiply_add(slope * job.scale, part, load(sums.dquery + d)));
      }
    }
  }
  store_all(gradients.query, sequence.batch, row.head, start + row.row, sums.dquery, job.depth);
}

void clear_rows(const Rows& rows, int64_t batch, int64_t head, int64_t begin, int64_t end,
                int64_t count) {
  for (int64_t row = begin; row < end; ++row) {
    SCALAR* to =
        const_cast<SCALAR*>(rows.data) + batch * rows.batch + head * rows.head + row * rows.row;
    __builtin_memset(static_cast<void*>(to), 0, sizeof(SCALAR) * static_cast<size_t>(count));
  }
}

// Where the padding behind a sequence ends.
int64_t padding_end(const Lengths& lengths, int64_t b, int64_t batch) {
  return lengths.cumulative && b + 1 < batch ? lengths.start(b) + lengths.of(b) : lengths.padded;
}

void differentiate(const Sequence& sequence, const Gradients& gradients, const Sums& sums) {
  const Job& job = sequence.job;
  const int64_t b = sequence.batch;
  const auto keys = static_cast<size_t>(sequence.keys);
  __builtin_memset(sums.keys, 0, sizeof(T) * keys * static_cast<size_t>(job.padded_depth()));
  __builtin_memset(sums.values, 0, sizeof(T) * keys * static_cast<size_t>(job.columns()));
  const int64_t count = sequence.count();
  for (int64_t i = 0; i < count; ++i) add_row(sequence, gradients, sums, sequence.first(i));
  const int64_t start = job.keys.start(b);
  for (int64_t key = 0; key < sequence.keys; ++key) {
    store_all(gradients.key, b, sequence.shared, start + key, sums.keys + key * job.padded_depth(),
              job.depth);
    store_all(gradients.value, b, sequence.shared, start + key, sums.values + key * job.columns(),
              job.width);
  }
  const int64_t key_end = padding_end(job.keys, b, job.batch);
  clear_rows(gradients.key, b, sequence.shared, start + sequence.keys, key_end, job.depth);
  clear_rows(gradients.value, b, sequence.shared, start + sequence.keys, key_end, job.width);
  const int64_t row_start = job.rows.start(b);
  for (int64_t i = 0; i < job.group(); ++i) {
    clear_rows(gradients.query, b, sequence.shared * job.group() + i, row_start + sequence.rows,
               padding_end(job.rows, b, job.batch), job.depth);
  }
}

int64_t slots_of_gradients(const Job& job) {
  return slots_for(job.batch * job.shared, Sums::size(job));
}

const char* describe(void** args, Job& job, Gradients& gradients, T*& workspace) {
  const char* why = describe_gradients(args, job, gradients);
  const int64_t elements = slots_of_gradients(job) * Sums::size(job);
  if (why == nullptr) workspace = read_workspace(args, ARG_WORKSPACE, elements, why);
  return why;
}

const char* differentiate_all(const Job& job, const Gradients& gradients, const bringup_ctx* ctx,
                              T* workspace) {
  const int64_t items = job.batch * job.shared;
  if (items == 0) return nullptr;
  const int64_t slots = slots_of_gradients(job);
  if (workspace == nullptr) workspace = bringup::workspace<T>(ctx, slots * Sums::size(job));
  if (workspace == nullptr) return "no workspace memory left";
  const int64_t work = 3 * multiplications(job) / slots;
  bringup::parallel_for(
      ctx, slots, 1 + kWorthAThread / (work + 1), [&](int64_t begin, int64_t end) {
        for (int64_t slot = begin; slot < end; ++slot) {
          const Sums sums(job, workspace + slot * Sums::size(job));
          for (int64_t item = slot; item < items; item += slots) {
            differentiate({job, item / job.shared, item % job.shared}, gradients, sums);
          }
        }
      });
  return nullptr;
}

}  // namespace

const char* bringup_can_implement(void** args, int32_t, const bringup_ctx*) {
  Job job;
  Gradients gradients;
  T* workspace = nullptr;
  return describe(args, job, gradients, workspace);
}

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  Job job;
  Gradients gradients;
  T* workspace = nullptr;
  const char* why = describe(args, job, gradients, workspace);
  if (why == nullptr) why = refused_content(args, job, 0);
  if (why == nullptr) why = read_seed(args, job);
  if (why == nullptr) why = differentiate_all(job, gradients, ctx, workspace);
  return why == nullptr ? 0 : bringup::fail(ctx, why);
}
