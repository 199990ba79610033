// npu::npu_fused_infer_attention_score.out, npu_fused_infer_attention_score_v2.out,
// npu_incre_flash_attention.out and npu_fusion_attention_v3.out; npu::_npu_paged_attention and
// atb::npu_multi_head_latent_attention.out, which have one row for each sequence and keys in pages,
// the second in two parts, of which the first are the values. The arguments come by macros
// (attention/layouts.h).
#include "attention/fused.h"

using namespace bringup_kernels;
using namespace bringup_kernels::attention;

namespace {

const char* describe_outputs(void** args, const char* layout, Job& job) {
  Shaped out;
  const DLTensor& given = bringup::tensor(args[ARG_OUT]);
  const bool fits = read_operand(given, layout, job.heads, out) && out.depth == job.width &&
                    rows_of(out) == job.rows.padded && out.lie.column == 1 &&
                    (job.rows.cumulative || out.batch == job.batch);
  if (!fits) return "the output is not the query's shape with the size of a head of value";
  job.out = out.lie;
#if ARG_LSE >= 0
  if (bringup::scalar<bool>(args[ARG_LSE_FLAG]) &&
      !read_statistic(bringup::tensor(args[ARG_LSE]), job, job.log_sum)) {
    return "softmax_lse is not float32 [B, N, S, 1], or [T, N, 1] for TND";
  }
#elif ARG_MOST >= 0
  if (!read_statistic(bringup::tensor(args[ARG_MOST]), job, job.most) ||
      !read_statistic(bringup::tensor(args[ARG_TOTAL]), job, job.total)) {
    return "softmax_max and softmax_sum are not float32 [B, N, S, 8], or [T, N, 8] for TND";
  }
#endif
  return nullptr;
}

// Null, or why it cannot be. `workspace` is what was given, or null.
const char* describe(void** args, Job& job, int64_t& pages, T*& workspace) {
  const char* why = describe_inputs(args, job, pages);
  if (why == nullptr) why = describe_outputs(args, layout_of(args), job);
  if (why == nullptr && !is_empty(job))
    workspace = read_workspace(args, ARG_WORKSPACE, workspace_size(job), why);
  return why;
}

void clear(void* arg) {
  const DLTensor& t = bringup::tensor(arg);
  __builtin_memset(t.data, 0, static_cast<size_t>(bringup::numel(t) * t.dtype.bits / 8));
}

// Results that say nothing here: the log of a sum, unasked, and what belongs to other dropout.
void clear_unused(void** args, const Job& job) {
#if ARG_LSE >= 0
  if (job.log_sum.data == nullptr) clear(args[ARG_LSE]);
#elif ARG_MOST >= 0
  if (job.kept == 1) clear(args[ARG_SEED]);
  clear(args[ARG_SOFTMAX_OUT]);
  clear(args[ARG_OFFSET]);
#else
  static_cast<void>(args), static_cast<void>(job);
#endif
}

}  // namespace

const char* bringup_can_implement(void** args, int32_t, const bringup_ctx*) {
  Job job;
  int64_t pages = 0;
  T* workspace = nullptr;
  return describe(args, job, pages, workspace);
}

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  Job job;
  int64_t pages = 0;
  T* workspace = nullptr;
  const char* why = describe(args, job, pages, workspace);
  if (why == nullptr) why = read_context(args, ctx, job);
  if (why == nullptr) why = refused_content(args, job, pages);
  if (why == nullptr) why = read_seed(args, job);
  if (why == nullptr) {
    clear_unused(args, job);
    why = attend_all(job, ctx, workspace);
  }
  return why == nullptr ? 0 : bringup::fail(ctx, why);
}
