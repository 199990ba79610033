// The products of the GEMM family, but for gemv and gradients: a [m, k] times b [k, n] -> [m, n],
// or a batch of these, and what follows the sums, rounded once.
//
// Macros say what an operator and a call are. ARG_*: where an argument stands, -1 for none.
// ELEMENT_*, FORMAT_*, LAYOUT_*: how operands lie in memory. GROUPS: how a batch is given. SCALE_*:
// the elements of blocks' scales; DEPTH_*: whether these differ along the depth, so that they
// belong to the operand and not to the sums. EPILOGUE: an expression over `acc`, the sums, and what
// OPERANDS (tensors, broadcast to the result, as x_name) and SCALARS list.
#include "product.h"

#include "epilogue.h"

#define SLICE_ROWS 1   // the rows of a before group_list[g] times b[g]
#define SLICE_DEPTH 2  // columns of a and rows of b before group_list[g], to a result of their own
#ifndef OPERANDS
#define OPERANDS
#endif
#ifndef SCALARS
#define SCALARS
#endif

using namespace bringup_kernels;

namespace {

using ElementA = stored<ELEMENT_A, formats::FORMAT_A>;
using ElementB = stored<ELEMENT_B, formats::FORMAT_B>;
using Left = Scaled<Operand<ElementA, Layout(LAYOUT_A)>, scale_element<SCALE_A>, DEPTH_A>;
using Right = Scaled<Operand<ElementB, Layout(LAYOUT_B)>, scale_element<SCALE_B>, DEPTH_B>;
using T = Accumulator<Left::Element, Right::Element>;

struct Call {
  int64_t items = 1;
  Product<Left, Right> first{};
  int64_t a_step = 0, b_step = 0;  // from a matrix of a batch to the next
  const int64_t* ends = nullptr;
#define X(name, number, element, ...) Broadcast<element> x_##name{};
  OPERANDS
#undef X

  // The row of the result, or of its matrix in a batch, at which an item's rows begin.
  int64_t first_row(int64_t item) const {
    return GROUPS == SLICE_ROWS ? group_start(ends, item) : 0;
  }

  Product<Left, Right> product(int64_t item) const {
    auto product = first;
    product.left.scales.select(item, first_row(item));
    product.right.scales.select(item, 0);
    product.right.data += item * b_step;
    if constexpr (GROUPS == SLICE_ROWS) {
      product.rows = ends[item] - first_row(item);
      product.left.data = first.left.at(first_row(item), 0);
    } else if constexpr (GROUPS == SLICE_DEPTH) {
      const int64_t start = group_start(ends, item);
      product.depth = ends[item] - start;
      product.left.data = first.left.at(0, start);
      product.right.data = first.right.at(start, 0);
    } else {
      product.left.data += item * a_step;
    }
    return product;
  }
};

template <class Matrix>
bool read_operand(const DLTensor& t, int64_t rows, int64_t columns, Matrix& matrix, int64_t& step) {
  matrix.data = static_cast<const typename Matrix::Element*>(t.data);
  if constexpr (Matrix::layout == Layout::kNz) {
    matrix.row_stride = t.strides[0];
    return t.ndim == 4 && t.shape[0] == (columns + kFractal - 1) / kFractal &&
           t.shape[1] == (rows + kFractal - 1) / kFractal;
  } else {
    const int32_t last = t.ndim - 1;
    if (t.ndim != 2 && t.ndim != 3) return false;
    matrix.row_stride = t.strides[last - 1];
    matrix.column_stride = t.strides[last];
    step = t.ndim == 3 ? t.strides[0] : 0;
    return t.shape[last - 1] == rows && t.shape[last] == columns;
  }
}

// Null, or why the call cannot be.
const char* describe(void** args, Call& call) {
  const DLTensor& a = bringup::tensor(args[ARG_A]);
  const DLTensor& out = bringup::tensor(args[ARG_OUT]);
  auto& [left, right, rows, columns, depth] = call.first;
  rows = out.shape[out.ndim - 2];
  columns = out.shape[out.ndim - 1];
#if ARG_K >= 0
  depth = bringup::scalar<int64_t>(args[ARG_K]);
#else
  depth = a.shape[a.ndim - 1];
#endif
  if (out.ndim == 3) call.items = out.shape[0];
#if GROUPS == SLICE_ROWS
  call.items = bringup::tensor(args[ARG_GROUP_LIST]).shape[0];
#endif
  if (!read_operand(a, rows, depth, left, call.a_step)) {
    return "a must be [m, k], or nz: contiguous [ceil(k / 16), ceil(m / 16), 16, 16]";
  }
  if (!read_operand(bringup::tensor(args[ARG_B]), depth, columns, right, call.b_step)) {
    return "b must be [k, n], or nz: contiguous [ceil(n / 16), ceil(k / 16), 16, 16]";
  }
  if (sizeof(ELEMENT_OUT) == 1 && args[ARG_OUT_DTYPE] == nullptr) {
    return "out_dtype must be given where a is int8";
  }
  constexpr int64_t kMostExact = (int64_t{1} << 31) / (128 * 128) - 1;
  if (is_whole<SumOf<Left, Right>> && depth > kMostExact) {
    return "k must be at most 131071: sums of more products of int8 do not fit into int32";
  }
#if ARG_BLOCKS >= 0
  if (!is_stored<ELEMENT_A, formats::FORMAT_A> || !is_stored<ELEMENT_B, formats::FORMAT_B>) {
    return "uint8 needs the format of a float in format_a or format_b, and only uint8 has one";
  }
  const auto block = bringup::list<int64_t>(args[ARG_BLOCKS]);
  if (block.size() != 4) return "blocks must be four: rows and depth of a, depth and columns of b";
  if (GROUPS == SLICE_DEPTH && (DEPTH_A || DEPTH_B)) {
    return "scales of slices of the depth cannot differ along it";
  }
  const int64_t along = GROUPS == SLICE_DEPTH ? 1 : depth;
  if (!left.scales.read(args[ARG_SCALE_A], call.items, rows, along, block[0], block[1])) {
    return "scale_a must have one element or one for each block, in the rows and depth of a";
  }
  if (!right.scales.read(args[ARG_SCALE_B], call.items, along, columns, block[2], block[3])) {
    return "scale_b must have one element or one for each block, in the depth and columns of b";
  }
#endif
#define X(name, number, element, along_rows, ...)                               \
  if (!call.x_##name.read(args[number], along_rows, call.items, rows, columns)) \
    return #name " must have one element, or as many as the result, in each dimension";
  OPERANDS
#undef X
  return nullptr;
}

}  // namespace

const char* bringup_can_implement(void** args, int32_t, const bringup_ctx*) {
  Call call;
  return describe(args, call);
}

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  Call call;
  if (const char* why = describe(args, call)) return bringup::fail(ctx, why);
  const auto& first = call.first;
  auto* out = static_cast<ELEMENT_OUT*>(bringup::tensor(args[ARG_OUT]).data);
#if GROUPS
  const int64_t sliced = GROUPS == SLICE_ROWS ? first.rows : first.depth;
  const char* why = read_ends(bringup::tensor(args[ARG_GROUP_LIST]), sliced, ctx, call.ends);
  if (why != nullptr) return bringup::fail(ctx, why);
#endif
#if GROUPS == SLICE_ROWS
  const int64_t covered = call.items == 0 ? 0 : call.ends[call.items - 1];
  __builtin_memset(static_cast<void*>(out + covered * first.columns), 0,
                   static_cast<size_t>((first.rows - covered) * first.columns) * sizeof *out);
#endif
#define X(name, number) const T x_##name = bringup::scalar<T>(args[number]);
  SCALARS
#undef X
  return run_batch(
      ctx, call.items, first, [&call](int64_t item) { return call.product(item); },
      [&](int64_t item, int64_t r, int64_t column, const auto* sums, int64_t count) {
        const int64_t row = call.first_row(item) + r;
        const int64_t matrix = GROUPS == SLICE_ROWS ? 0 : item * first.rows;
        auto left = first.left.scales;
        auto right = first.right.scales;
        left.select(item, 0);
        right.select(item, 0);
        const float of_row = left.of_row(row);
        write_row<T>(out + (matrix + row) * first.columns + column, sums, count,
                     [&](Vec<T> acc, int64_t j, int64_t lanes) {
                       if constexpr (Right::kOfSums) {
                         acc = acc * right.of_columns(column + j, lanes);
                       }
                       if constexpr (Left::kOfSums) acc = acc * of_row;
#define X(name, number, element, along_rows, otherwise) \
  const Vec<T> x_##name = call.x_##name.template at<T>(item, row, column + j, lanes, otherwise);
                       OPERANDS
#undef X
                       return EPILOGUE;
                     });
      });
}
