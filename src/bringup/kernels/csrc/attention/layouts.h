// Arguments of torch_npu's attention operators, which differ in order and names: a macro ARG_...
// has the number of each argument, -1 where an operator has none.
#pragma once

#include "engine.h"

namespace bringup_kernels::attention {

// Sizes and strides of a tensor by the letters of its layout: B batch, S rows, N heads, D elements,
// H heads and elements in one, T the rows of all sequences.
template <class Element>
struct ShapedAs {
  int64_t batch = 1;
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t depth = 0;
  RowsOf<Element> lie;
};
using Shaped = ShapedAs<SCALAR>;
using KeyShaped = ShapedAs<KEY_SCALAR>;

inline bool equal(const char* a, const char* b) { return __builtin_strcmp(a, b) == 0; }

// `heads` are those of a layout that does not tell. False when the tensor does not have this
// layout.
template <class Element>
inline bool read_layout(const DLTensor& t, const char* layout, int64_t heads,
                        ShapedAs<Element>& to) {
  if (static_cast<size_t>(t.ndim) != __builtin_strlen(layout)) return false;
  to.heads = heads;
  to.lie.data = static_cast<const Element*>(t.data);
  for (int32_t i = 0; i < t.ndim; ++i) {
    const int64_t size = t.shape[i];
    const int64_t stride = t.strides[i];
    switch (layout[i]) {
      case 'B':
        to.batch = size;
        to.lie.batch = stride;
        break;
      case 'S':
      case 'T':
        to.rows = size;
        to.lie.row = stride;
        break;
      case 'N':
        to.heads = size;
        to.lie.head = stride;
        break;
      case 'D':
        to.depth = size;
        to.lie.column = stride;
        break;
      default:  // H
        if (heads <= 0 || size % heads != 0) return false;
        to.depth = size / heads;
        to.lie.column = stride;
        to.lie.head = to.depth * stride;
    }
  }
  return heads == to.heads;
}

// The same of a tensor of the dtype that the kernel was built for.
template <class Element>
inline bool read_operand(const DLTensor& t, const char* layout, int64_t heads,
                         ShapedAs<Element>& to) {
  return bringup::matches<Element>(t) && read_layout(t, layout, heads, to);
}

// Rows of float32 [B, N, S, n], or [T, N, n] where sequences follow each other. False for another
// shape or dtype.
inline bool read_statistic(const DLTensor& t, const Job& job, Statistic& to) {
  Shaped lie;
  const char* order = job.rows.cumulative ? "TND" : "BNSD";
  if (t.dtype.code != 2 || t.dtype.bits != 32 || !read_layout(t, order, job.heads, lie))
    return false;
  if (lie.rows != job.rows.padded || (!job.rows.cumulative && lie.batch != job.batch)) return false;
  to = {static_cast<float*>(t.data), lie.lie.batch, lie.lie.head, lie.lie.row, lie.depth};
  return lie.lie.column == 1 || lie.depth == 1;
}

inline bool is_given(void** args, int number) { return number >= 0 && args[number] != nullptr; }

inline int64_t integer(void** args, int number, int64_t otherwise) {
  return is_given(args, number) ? bringup::scalar<int64_t>(args[number]) : otherwise;
}

// One number for each sequence, one for all, or more than there are sequences. Ends where a layout
// has the rows of all sequences in one.
inline const char* read_lengths(void** args, int number, int64_t batch, bool cumulative,
                                Lengths& to) {
  to.cumulative = cumulative;
  if (!is_given(args, number)) return nullptr;
  const auto given = bringup::list<int64_t>(args[number]);
  to.data = given.begin();
  to.count = given.size() == 1 ? 1 : batch;
  if (given.size() < batch && (cumulative || given.size() != 1)) {
    return cumulative ? "the lengths of query and key must be those of as many sequences"
                      : "the lengths must be one number, or one for each sequence";
  }
  for (int64_t b = 0; b < batch; ++b) {
    if (to.of(b) < 0 || (cumulative ? to.data[b] : to.of(b)) > to.padded) {
      return cumulative ? "lengths of the layout TND are ends of sequences: none is less than the "
                          "one before, or behind the last row"
                        : "a length must lie between 0 and the rows that there are";
    }
  }
  return nullptr;
}

constexpr int64_t kCompressedMask = 2048;

// The masks of sparse_mode 2, 3 and 4 say nothing that the mode does not say: what is above the
// diagonal is hidden. Whether it is that one shows on both sides of the diagonal.
inline bool is_upper_triangle(const DLTensor& mask) {
  const auto* data = static_cast<const uint8_t*>(mask.data);
  const int64_t row = mask.strides[mask.ndim - 2];
  const int64_t key = mask.strides[mask.ndim - 1];
  for (int64_t i = 0; i < kCompressedMask; ++i) {
    if (data[i * (row + key)] != 0) return false;
    if (i + 1 < kCompressedMask && data[i * row + (i + 1) * key] == 0) return false;
  }
  return true;
}

inline bool is_compressed(const DLTensor& mask) {
  for (int32_t i = 0; i + 2 < mask.ndim; ++i) {
    if (mask.shape[i] != 1) return false;
  }
  return mask.ndim >= 2 && mask.shape[mask.ndim - 1] == kCompressedMask &&
         mask.shape[mask.ndim - 2] == kCompressedMask;
}

// [S, K], [B, S, K] or [B, N, S, K], sizes of 1 for all; of inference with one row a sequence [B,
// K] too. A mask may have more rows and keys than there are.
inline const char* read_mask(const DLTensor& mask, Job& job) {
  const char* wrong =
      "atten_mask must be [S, K], [B, S, K] or [B, N, S, K], with at least the rows of query and "
      "of key, and 1 for B or N where it is the same for all";
  if (mask.dtype.bits != 8) return "atten_mask must be bool, int8 or uint8";
  if (mask.ndim < 2 || mask.ndim > 4) return wrong;
  const int32_t last = mask.ndim - 1;
  int64_t keys = job.pages.table == nullptr ? job.keys.padded : job.most_keys();
  if (mask.shape[last] < keys || mask.shape[last - 1] < job.rows.padded) return wrong;
  job.mask = {static_cast<const uint8_t*>(mask.data), 0, 0, mask.strides[last - 1],
              mask.strides[last]};
#if ARG_KEEP_PROB < 0
  if (mask.ndim == 2 && job.rows.padded == 1 && mask.shape[0] == job.batch) {
    job.mask.batch = mask.strides[0];
  }
#endif
  if (mask.ndim >= 3 && mask.shape[0] != 1) {
    if (mask.shape[0] != job.batch) return wrong;
    job.mask.batch = mask.strides[0];
  }
  if (mask.ndim == 4 && mask.shape[1] != 1) {
    if (mask.shape[1] != job.heads) return wrong;
    job.mask.head = mask.strides[1];
  }
  return nullptr;
}

// What `sparse_mode` lets a row see.
inline const char* read_sparse_mode(int64_t mode, const DLTensor* mask, int64_t before,
                                    int64_t after, Job& job) {
  const auto bounded = [](int64_t n) { return smaller(larger(n, -kUnlimited), kUnlimited); };
  job.right_aligned = mode != 0 && mode != 2;
  if (mode < 0 || mode > 4) return "sparse_mode must be 0, 1, 2, 3 or 4";
  if (mode <= 1) {
    if (mask == nullptr) return mode == 0 ? nullptr : "sparse_mode 1 needs atten_mask";
    if (job.rows.cumulative) return "the layout TND takes no atten_mask of sparse_mode 0 or 1";
    if (mode == 0) {
      job.before = bounded(before);
      job.after = bounded(after);
    }
    return read_mask(*mask, job);
  }
  if (mask == nullptr || !is_compressed(*mask) || mask->dtype.bits != 8) {
    return "sparse_mode 2, 3 and 4 need atten_mask of [2048, 2048] (bool, int8 or uint8), ones "
           "above the diagonal";
  }
  job.after = mode == 4 ? bounded(after) : 0;
  if (mode == 4) job.before = bounded(before);
  return nullptr;
}

// The pages of each sequence, each of job.pages.size rows.
inline const char* read_pages(const DLTensor& table, Job& job) {
  if (table.ndim != 2 || table.shape[0] != job.batch || table.dtype.bits != 32) {
    return "the table of pages must be int32, [sequences, pages of the longest]";
  }
  if (table.shape[1] > 0 && table.strides[1] != 1) return "the table of pages must be contiguous";
  job.pages.table = static_cast<const int32_t*>(table.data);
  job.pages.stride = table.strides[0];
  job.keys.padded = table.shape[1] * job.pages.size;
  return nullptr;
}

// Null, or that a page which is read does not exist. Reads the table.
inline const char* refused_pages(const Job& job, int64_t pages) {
  if (job.pages.table == nullptr) return nullptr;
  for (int64_t b = 0; b < job.batch; ++b) {
    const int64_t used = (job.keys.of(b) + job.pages.size - 1) / job.pages.size;
    for (int64_t i = 0; i < used; ++i) {
      const int32_t page = job.pages.table[b * job.pages.stride + i];
      if (page < 0 || page >= pages) return "the table of pages names a page that does not exist";
    }
  }
  return nullptr;
}

// The workspace that was given, or null for none. `why` says what is wrong with it.
inline T* read_workspace(void** args, int number, int64_t elements, const char*& why) {
  if (!is_given(args, number)) return nullptr;
  const DLTensor& given = bringup::tensor(args[number]);
  const int64_t bytes = bringup::numel(given) * given.dtype.bits / 8;
  const auto needed = elements * static_cast<int64_t>(sizeof(T));
  const auto address = reinterpret_cast<uintptr_t>(given.data);
  if (!bringup::is_contiguous(given) || address % 64 != 0) {
    why = "workspace must be contiguous and begin at a multiple of 64 bytes";
  } else if (bytes < needed) {
    static thread_local char text[128];
    __builtin_snprintf(text, sizeof text, "workspace has %lld bytes, and these lengths need %lld",
                       static_cast<long long>(bytes), static_cast<long long>(needed));
    why = text;
  }
  return static_cast<T*>(given.data);
}

}  // namespace bringup_kernels::attention
