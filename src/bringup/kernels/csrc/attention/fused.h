// What the fused attention operators of torch_npu have in common: layouts BSH, BSND, BNSD and TND,
// grouped heads, keys and values in pages, positions in tensors of their own (rope), the masks of
// sparse_mode 0 to 4. X(number, name) lists arguments that have to be None or 0.
#pragma once

#include "layouts.h"

#ifndef ZERO_ARGUMENTS
#define ZERO_ARGUMENTS
#endif

namespace bringup_kernels::attention {

inline const char* refused(const char* name, const char* why) {
  static thread_local char text[96];
  __builtin_snprintf(text, sizeof text, "%s is not supported: %s", name, why);
  return text;
}

inline const char* unsupported(void** args) {
#define X(number, name) \
  if (args[number] != nullptr) return refused(#name, "leave it out");
  NONE_ARGUMENTS
#undef X
#define X(number, name) \
  if (bringup::scalar<int64_t>(args[number]) != 0) return refused(#name, "leave it at 0");
  ZERO_ARGUMENTS
#undef X
#if ARG_SOFTMAX_LAYOUT >= 0
  if (bringup::text(args[ARG_SOFTMAX_LAYOUT])[0] != 0)
    return refused("softmax_layout", "leave it out");
#endif
#if ARG_KEEP_PROB >= 0
  if (bringup::scalar<double>(args[ARG_KEEP_PROB]) != 1)
    return refused("dropout", "keep_prob is 1");
#endif
  return nullptr;
}

constexpr const char* kLayouts[] = {"BSH", "BSND", "BNSD", "TND"};

inline bool known(const char* layout) {
  for (const char* each : kLayouts) {
    if (equal(layout, each)) return true;
  }
  return false;
}

// Keys, values and what stands for both in pages.
inline const char* describe_keys(void** args, const char* layout, Job& job, int64_t& pages) {
  const DLTensor& k = bringup::tensor(args[ARG_KEY]);
  const DLTensor& v = bringup::tensor(args[ARG_VALUE]);
  const bool paged = is_given(args, ARG_BLOCK_TABLE);
  if (paged) layout = k.ndim == 3 ? "BSH" : "BNSD";
  Shaped key;
  Shaped value;
  if (!read_operand(k, layout, job.shared, key) || !read_operand(v, layout, job.shared, value)) {
    return "key and value do not have the layout, or not num_key_value_heads heads";
  }
  if (key.batch != value.batch || key.rows != value.rows) {
    return "key and value differ in batch or length";
  }
  if (key.depth != job.depth) return "query and key differ in the size of a head";
  job.k.first = key.lie;
  job.v.first = value.lie;
  job.width = value.depth;
  job.keys.padded = key.rows;
  pages = key.batch;
  if (!paged) {
    return key.batch == job.batch || job.rows.cumulative ? nullptr
                                                         : "query and key differ in batch";
  }
  job.pages.size = key.rows;
  const int64_t size = integer(args, ARG_BLOCK_SIZE, 0);
  if (size != 0 && size != key.rows) return "block_size differs from the rows of a page of key";
  if (key.rows == 0) return "a page of key has no rows";
  if (!is_given(args, ARG_KV_LENGTHS)) return "keys in pages need the lengths of keys";
  return read_pages(bringup::tensor(args[ARG_BLOCK_TABLE]), job);
}

inline const char* describe_rope(void** args, const char* layout, int64_t pages, Job& job) {
  const bool has_query = is_given(args, ARG_QUERY_ROPE);
  if (has_query != is_given(args, ARG_KEY_ROPE)) return "query_rope and key_rope go together";
  if (!has_query) return nullptr;
  const DLTensor& k = bringup::tensor(args[ARG_KEY_ROPE]);
  Shaped query;
  Shaped key;
  if (!read_operand(bringup::tensor(args[ARG_QUERY_ROPE]), layout, job.heads, query)) {
    return "query_rope does not have the layout";
  }
  const char* of_key = job.pages.table == nullptr ? layout : k.ndim == 3 ? "BSH" : "BNSD";
  if (!read_operand(k, of_key, job.shared, key)) return "key_rope does not have the layout of key";
  const int64_t rows = job.pages.table == nullptr ? job.keys.padded : job.pages.size;
  const bool fits = query.rows == job.rows.padded && key.rows == rows && key.batch == pages &&
                    (job.rows.cumulative || query.batch == job.batch) && query.depth == key.depth;
  if (!fits) return "query_rope and key_rope differ from query and key in more than the last size";
  if (job.depth % kPanel != 0) return "a head of query has a multiple of 16 elements beside a rope";
  job.q.second = query.lie;
  job.k.second = key.lie;
  job.q.split = job.k.split = job.depth;
  job.depth += query.depth;
  return nullptr;
}

// Reads shapes and host arguments. Null, or why it cannot be.
inline const char* describe_inputs(void** args, Job& job, int64_t& pages) {
  if (const char* why = unsupported(args)) return why;
  const char* layout = bringup::text(args[ARG_LAYOUT]);
  if (!known(layout)) return "input_layout must be BSH, BSND, BNSD or TND";
  job.heads = bringup::scalar<int64_t>(args[ARG_HEADS]);
  job.shared = integer(args, ARG_KV_HEADS, 0);
  Shaped query;
  if (!read_operand(bringup::tensor(args[ARG_QUERY]), layout, job.heads, query)) {
    return "query does not have the layout, or not as many heads as said";
  }
#if ARG_KV_HEADS < 0  // this operator's keys say themselves how many heads they have
  const DLTensor& k = bringup::tensor(args[ARG_KEY]);
  job.shared = equal(layout, "BSH")
                   ? (query.depth > 0 && k.ndim == 3 ? k.shape[2] / query.depth : 0)
               : k.ndim < 3 ? 0
                            : k.shape[equal(layout, "BSND") ? 2 : 1];
#endif
  if (job.shared == 0) job.shared = job.heads;
  if (job.heads <= 0 || job.shared < 0 || job.heads % job.shared != 0) {
    return "the heads of query must be a multiple of those of key";
  }
  const bool ragged = equal(layout, "TND");
  if (ragged && (!is_given(args, ARG_Q_LENGTHS) || !is_given(args, ARG_KV_LENGTHS))) {
    return "the layout TND needs the ends of the sequences of query and key";
  }
  job.depth = query.depth;
  job.q.first = query.lie;
  job.batch = ragged ? bringup::list<int64_t>(args[ARG_Q_LENGTHS]).size() : query.batch;
  job.rows.padded = query.rows;
  if (job.batch == 0 && query.rows > 0) return "query has rows, and there are no sequences";
  job.scale = bringup::scalar<T>(args[ARG_SCALE]);
  const bool is_one_row = !ragged && query.rows == 1;  // then torch_npu takes no lengths of rows
  if (!is_one_row) {
    const char* why = read_lengths(args, ARG_Q_LENGTHS, job.batch, ragged, job.rows);
    if (why != nullptr) return why;
  }
  if (const char* why = describe_keys(args, layout, job, pages)) return why;
  const bool ends = ragged && job.pages.table == nullptr;
  if (const char* why = read_lengths(args, ARG_KV_LENGTHS, job.batch, ends, job.keys)) return why;
  if (const char* why = describe_rope(args, layout, pages, job)) return why;
  const DLTensor* mask = is_given(args, ARG_MASK) ? &bringup::tensor(args[ARG_MASK]) : nullptr;
  const int64_t mode = integer(args, ARG_SPARSE_MODE, 0);
  return read_sparse_mode(mode, mask, integer(args, ARG_BEFORE, kUnlimited),
                          integer(args, ARG_AFTER, kUnlimited), job);
}

// Null, or why what the tensors hold does not do.
inline const char* refused_content(void** args, const Job& job, int64_t pages) {
  if (const char* why = refused_pages(job, pages)) return why;
  const bool compressed = is_given(args, ARG_MASK) && integer(args, ARG_SPARSE_MODE, 0) >= 2;
  if (!compressed || is_upper_triangle(bringup::tensor(args[ARG_MASK]))) return nullptr;
  return "atten_mask of sparse_mode 2, 3 and 4 has ones above the diagonal and zeros elsewhere";
}

}  // namespace bringup_kernels::attention
