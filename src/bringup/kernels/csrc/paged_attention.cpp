// npu::_npu_paged_attention and atb::npu_multi_head_latent_attention.out: one row for each sequence
// against keys in pages, [pages, rows of a page, N, D]; the second has keys in two parts, of which
// the first are the values. The arguments come by macros (attention/layouts.h).
#include "attention/layouts.h"

using namespace bringup_kernels;
using namespace bringup_kernels::attention;

namespace {

const char* describe_keys(void** args, Job& job, int64_t& pages) {
  KeyShaped key;
  KeyShaped value;
  const bool fits = read_operand(bringup::tensor(args[ARG_KEY]), "BSND", job.shared, key) &&
                    read_operand(bringup::tensor(args[ARG_VALUE]), "BSND", job.shared, value);
  if (!fits) return "keys and values must be [pages, rows of a page, key heads, size of a head]";
  if (key.batch != value.batch || key.rows != value.rows) return "keys and values differ in pages";
  if (key.rows == 0) return "a page of keys has no rows";
  if (key.depth != job.depth) return "query and keys differ in the size of a head";
  job.k.first = key.lie;
  job.v.first = value.lie;
  job.width = value.depth;
  job.pages.size = key.rows;
  pages = key.batch;
  return read_pages(bringup::tensor(args[ARG_BLOCK_TABLE]), job);
}

#if ARG_QUERY_ROPE >= 0
const char* describe_rope(void** args, const Shaped& query, int64_t pages, Job& job) {
  Shaped of_query;
  KeyShaped of_key;
  const bool fits =
      read_operand(bringup::tensor(args[ARG_QUERY_ROPE]), "BND", job.heads, of_query) &&
      read_operand(bringup::tensor(args[ARG_KEY_ROPE]), "BSND", job.shared, of_key) &&
      of_query.batch == query.batch && of_key.batch == pages && of_key.rows == job.pages.size &&
      of_query.depth == of_key.depth;
  if (!fits) return "q_rope and k_rope differ from q_nope and ctkv in more than the last size";
  if (job.depth % kPanel != 0) return "a head of q_nope has a multiple of 16 elements";
  job.q.second = of_query.lie;
  job.k.second = of_key.lie;
  job.q.split = job.k.split = job.depth;
  job.depth += of_query.depth;
  return nullptr;
}
#endif

// Null, or why it cannot be.
const char* describe(void** args, Job& job, int64_t& pages, T*& workspace) {
  job.heads = bringup::scalar<int64_t>(args[ARG_HEADS]);
  job.shared = bringup::scalar<int64_t>(args[ARG_KV_HEADS]);
  if (job.heads <= 0 || job.shared <= 0 || job.heads % job.shared != 0) {
    return "the heads of query must be a multiple of those of the keys";
  }
  Shaped query;
  if (!read_operand(bringup::tensor(args[ARG_QUERY]), "BND", job.heads, query)) {
    return "query must be [sequences, heads, size of a head], with as many heads as said";
  }
  job.batch = query.batch;
  job.depth = query.depth;
  job.q.first = query.lie;
  job.rows.padded = 1;
  job.scale = bringup::scalar<T>(args[ARG_SCALE]);
  if (const char* why = describe_keys(args, job, pages)) return why;
#if ARG_QUERY_ROPE >= 0
  if (const char* why = describe_rope(args, query, pages, job)) return why;
#endif
#if ARG_KV_LENGTHS >= 0
  const char* wrong = read_lengths(args, ARG_KV_LENGTHS, job.batch, false, job.keys);
  if (wrong != nullptr) return wrong;
#if ARG_CACHE_MODE >= 0
  if (args[ARG_CACHE_MODE] != nullptr &&
      !equal(bringup::text(args[ARG_CACHE_MODE]), "krope_ctkv")) {
    return "cache_mode must be krope_ctkv";
  }
#define X(number, name) \
  if (args[number] != nullptr) return #name " is not supported: leave it out";
  NONE_ARGUMENTS
#undef X
#endif
#else
  const DLTensor& lengths = bringup::tensor(args[ARG_KV_LENGTHS_TENSOR]);
  const bool is_integer = lengths.dtype.code == 0 && lengths.dtype.bits >= 32;
  if (lengths.ndim != 1 || lengths.shape[0] != job.batch || !is_integer) {
    return "context_lens must be int32 or int64, with one length for each sequence";
  }
#endif
  Shaped out;
  if (!read_operand(bringup::tensor(args[ARG_OUT]), "BND", job.heads, out) ||
      out.batch != job.batch || out.depth != job.width || out.lie.column != 1) {
    return "the output must be [sequences, heads, size of a value], its last dimension dense";
  }
  job.out = out.lie;
  const char* why = nullptr;
  if (!is_empty(job)) workspace = read_workspace(args, ARG_WORKSPACE, workspace_size(job), why);
  return why;
}

#if ARG_KV_LENGTHS < 0
// The lengths of keys, which are in a tensor.
const char* read_context(const DLTensor& lengths, const bringup_ctx* ctx, Job& job) {
  auto* copy = bringup::workspace<int64_t>(ctx, larger(1, job.batch));
  if (copy == nullptr) return "no workspace memory left";
  for (int64_t b = 0; b < job.batch; ++b) {
    const int64_t place = b * lengths.strides[0];
    copy[b] = lengths.dtype.bits == 32 ? static_cast<const int32_t*>(lengths.data)[place]
                                       : static_cast<const int64_t*>(lengths.data)[place];
    if (copy[b] < 0 || copy[b] > job.keys.padded) {
      return "a length of context_lens is negative, or more than the pages of its sequence hold";
    }
  }
  job.keys.data = copy;
  job.keys.count = job.batch;
  return nullptr;
}
#endif

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
#if ARG_KV_LENGTHS < 0
  if (why == nullptr) why = read_context(bringup::tensor(args[ARG_KV_LENGTHS_TENSOR]), ctx, job);
#endif
  if (why == nullptr) why = refused_pages(job, pages);
  if (why == nullptr) why = attend_all(job, ctx, workspace);
  return why == nullptr ? 0 : bringup::fail(ctx, why);
}
