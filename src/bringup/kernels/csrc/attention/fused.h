// What the fused attention operators of torch_npu have in common: layouts BSH, BSND, BNSD and TND,
// grouped heads, keys and values in pages, positions in tensors of their own (rope), the masks of
// sparse_mode 0 to 4. X(number, name) lists arguments that have to be None or 0. Where no argument
// has the layout there is one row for each sequence, [B, N, D], and pages are [B, S, N, D].
#pragma once

#include "layouts.h"

#ifndef ZERO_ARGUMENTS
#define ZERO_ARGUMENTS
#endif
#ifndef NONE_ARGUMENTS
#define NONE_ARGUMENTS
#endif

namespace bringup_kernels::attention {

#if ARG_LAYOUT >= 0
inline const char* layout_of(void** args) { return bringup::text(args[ARG_LAYOUT]); }
inline const char* layout_of_pages(const DLTensor& t) { return t.ndim == 3 ? "BSH" : "BNSD"; }
inline int64_t rows_of(const Shaped& shaped) { return shaped.rows; }
#else
inline const char* layout_of(void**) { return "BND"; }
inline const char* layout_of_pages(const DLTensor&) { return "BSND"; }
inline int64_t rows_of(const Shaped&) { return 1; }
#endif

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
#if ARG_CACHE_MODE >= 0
  if (args[ARG_CACHE_MODE] != nullptr &&
      !equal(bringup::text(args[ARG_CACHE_MODE]), "krope_ctkv")) {
    return "cache_mode must be krope_ctkv";
  }
#endif
#if ARG_SOFTMAX_LAYOUT >= 0
  if (bringup::text(args[ARG_SOFTMAX_LAYOUT])[0] != 0)
    return refused("softmax_layout", "leave it out");
#endif
  return nullptr;
}

// The numbers that dropout takes, which are in a tensor. Null, or why they do not do.
inline const char* read_seed(void** args, Job& job) {
#if ARG_KEEP_PROB >= 0
  if (job.kept == 1) return nullptr;
  const DLTensor* seed = is_given(args, ARG_SEED) ? &bringup::tensor(args[ARG_SEED]) : nullptr;
  if (seed == nullptr || !bringup::matches<int64_t>(*seed) || bringup::numel(*seed) != 1) {
    return "dropout needs the forward's seed, int64 [1]";
  }
  job.seed = static_cast<uint64_t>(*static_cast<const int64_t*>(seed->data));
  if (job.seed == 0) return "dropout needs a seed: keep_prob was 1 when the forward was called";
#else
  static_cast<void>(args), static_cast<void>(job);
#endif
  return nullptr;
}

// The lengths of keys where they are in a tensor. Null, or why they do not do.
inline const char* describe_context(void** args, const Job& job) {
#if ARG_KV_LENGTHS_TENSOR >= 0
  const DLTensor& lengths = bringup::tensor(args[ARG_KV_LENGTHS_TENSOR]);
  const bool is_integer = lengths.dtype.code == 0 && lengths.dtype.bits >= 32;
  if (lengths.ndim != 1 || lengths.shape[0] != job.batch || !is_integer) {
    return "context_lens must be int32 or int64, with one length for each sequence";
  }
#else
  static_cast<void>(args), static_cast<void>(job);
#endif
  return nullptr;
}

inline const char* read_context(void** args, const bringup_ctx* ctx, Job& job) {
#if ARG_KV_LENGTHS_TENSOR >= 0
  const DLTensor& lengths = bringup::tensor(args[ARG_KV_LENGTHS_TENSOR]);
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
#else
  static_cast<void>(args), static_cast<void>(ctx), static_cast<void>(job);
#endif
  return nullptr;
}

// Scales of int8 keys or values, and offsets: one for all or each column of a head (mode 0), row
// (1), head (2), row of a head (3), row of a page (4), row of a head of a page (5). `half` of the
// tensors where they have both, -1 where they have one.
inline const char* read_factors(void** args, int scale, int offset, int64_t mode, int64_t half,
                                const Job& job, int64_t width, int64_t pages, Factors& to) {
  const DLTensor& given = bringup::tensor(args[scale]);
  const int64_t count = bringup::numel(given) / (half < 0 ? 1 : 2);
  const bool paged = job.pages.table != nullptr;
  const int64_t rows = mode >= 4        ? job.pages.size
                       : given.ndim > 0 ? given.shape[given.ndim - 1]
                                        : 0;
  if (mode < 0 || mode > 5 || (mode >= 4 && !paged)) {
    return "the mode of scales must be 0 to 3, or with pages to 5";
  }
  const int64_t of_head = mode == 0 ? width : mode == 2 ? 1 : rows;
  const bool by_head = mode != 1 && mode != 4;
  const int64_t of_batch = (by_head ? job.shared : 1) * of_head;
  const int64_t batches = mode >= 4 ? pages : mode % 2 == 1 ? job.batch : 1;
  const bool is_one = mode == 0 && count == 1;
  const bool fits =
      is_one || (count == batches * of_batch &&
                 (mode % 2 == 0 || mode == 5 || (!job.keys.cumulative && rows >= job.most_keys())));
  to.is_float = bringup::matches<float>(given);
  const bool has_dtype = to.is_float || bringup::matches<SCALAR>(given);
  if (!fits || !has_dtype || !bringup::is_contiguous(given) ||
      (half >= 0 && bringup::numel(given) != 2 * count)) {
    return "scales of keys and values must be contiguous, float32 or of the query's dtype, and "
           "have the shape of their mode";
  }
  to.in_pages = mode >= 4;
  if (!is_one) {
    to.batch = batches == 1 && mode < 4 ? 0 : of_batch;
    to.head = by_head ? of_head : 0;
    to.row = mode == 1 || mode >= 3 ? 1 : 0;
    to.column = mode == 0 ? 1 : 0;
  }
  const int64_t first = half < 0 ? 0 : half * count * given.dtype.bits / 8;
  to.scale = static_cast<const char*>(given.data) + first;
  if (!is_given(args, offset)) return nullptr;
  const DLTensor& more = bringup::tensor(args[offset]);
  if (bringup::numel(more) != bringup::numel(given) || !bringup::is_contiguous(more) ||
      more.dtype.code != given.dtype.code || more.dtype.bits != given.dtype.bits) {
    return "offsets of keys and values must have the shape and dtype of their scales";
  }
  to.offset = static_cast<const char*>(more.data) + first;
  return nullptr;
}

// Those of keys and of values, which are in tensors of their own, or in one.
inline const char* describe_factors(void** args, int64_t pages, Job& job) {
  const bool apart = is_given(args, ARG_KEY_SCALE) && is_given(args, ARG_VALUE_SCALE);
  const bool joined = is_given(args, ARG_SCALES);
  if (!apart && (is_given(args, ARG_KEY_SCALE) || is_given(args, ARG_VALUE_SCALE))) {
    return "scales of keys and of values go together";
  }
  if constexpr (!kQuantised) {
    return apart || joined ? "scales belong to keys and values that are int8" : nullptr;
  }
  if (!__is_same(KEY_SCALAR, int8_t)) return "key and value have the query's dtype, or are int8";
  if (!apart && !joined) return "keys and values that are int8 need their scales";
  const int64_t both = integer(args, ARG_SCALES_MODE, 0);
  const char* why =
      read_factors(args, apart ? ARG_KEY_SCALE : ARG_SCALES, apart ? ARG_KEY_OFFSET : ARG_OFFSETS,
                   apart ? integer(args, ARG_KEY_MODE, 0) : both, apart ? -1 : 0, job, job.depth,
                   pages, job.k.factors);
  if (why != nullptr) return why;
  return read_factors(args, apart ? ARG_VALUE_SCALE : ARG_SCALES,
                      apart ? ARG_VALUE_OFFSET : ARG_OFFSETS,
                      apart ? integer(args, ARG_VALUE_MODE, 0) : both, apart ? -1 : 1, job,
                      job.width, pages, job.v.factors);
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
  if (paged) layout = layout_of_pages(k);
  KeyShaped key;
  KeyShaped value;
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
  if (!is_given(args, ARG_KV_LENGTHS) && ARG_KV_LENGTHS_TENSOR < 0) {
    return "keys in pages need the lengths of keys";
  }
  return read_pages(bringup::tensor(args[ARG_BLOCK_TABLE]), job);
}

inline const char* describe_rope(void** args, const char* layout, int64_t pages, Job& job) {
  const bool has_query = is_given(args, ARG_QUERY_ROPE);
  if (has_query != is_given(args, ARG_KEY_ROPE)) return "query_rope and key_rope go together";
  if (!has_query) return nullptr;
  if (kQuantised) return "query_rope and key_rope do not go with int8 keys";
  const DLTensor& k = bringup::tensor(args[ARG_KEY_ROPE]);
  Shaped query;
  KeyShaped key;
  if (!read_operand(bringup::tensor(args[ARG_QUERY_ROPE]), layout, job.heads, query)) {
    return "query_rope does not have the layout";
  }
  const char* of_key = job.pages.table == nullptr ? layout : layout_of_pages(k);
  if (!read_operand(k, of_key, job.shared, key)) return "key_rope does not have the layout of key";
  const int64_t rows = job.pages.table == nullptr ? job.keys.padded : job.pages.size;
  const bool fits = rows_of(query) == job.rows.padded && key.rows == rows && key.batch == pages &&
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
  const char* layout = layout_of(args);
  if (ARG_LAYOUT >= 0 && !known(layout)) return "input_layout must be BSH, BSND, BNSD or TND";
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
  job.rows.padded = rows_of(query);
  if (job.batch == 0 && query.rows > 0) return "query has rows, and there are no sequences";
  job.scale = bringup::scalar<T>(args[ARG_SCALE]);
#if ARG_KEEP_PROB >= 0
  job.kept = bringup::scalar<double>(args[ARG_KEEP_PROB]);
  if (!(job.kept > 0 && job.kept <= 1)) return "keep_prob must be more than 0 and at most 1";
#endif
#if ARG_LSE < 0 && ARG_KEEP_PROB < 0
  if (ragged || rows_of(query) > 1) return "query must have one row for each sequence, and no TND";
#endif
  const bool is_one_row =
      !ragged && rows_of(query) == 1;  // then torch_npu takes no lengths of rows
  if (!is_one_row) {
    const char* why = read_lengths(args, ARG_Q_LENGTHS, job.batch, ragged, job.rows);
    if (why != nullptr) return why;
  }
  if (const char* why = describe_keys(args, layout, job, pages)) return why;
  const bool ends = ragged && job.pages.table == nullptr;
  if (const char* why = read_lengths(args, ARG_KV_LENGTHS, job.batch, ends, job.keys)) return why;
  if (const char* why = describe_context(args, job)) return why;
  if (const char* why = describe_factors(args, pages, job)) return why;
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
