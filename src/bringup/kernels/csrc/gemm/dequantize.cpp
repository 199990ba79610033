// bringup::dequantize(Tensor x, Tensor? scale, Tensor? offset, int[] block, int packed, str format,
//                     ScalarType out_dtype) -> Tensor
//
// (x - offset) * scale, with one of each for a block of x [items, rows, columns]; rounded once.
// Where `packed` is 2, a byte has two elements of 4 bits, the lower half first.
#include "scales.h"

namespace bringup_kernels {

template <class Element>
struct Offsets : Scales<Element> {};
template <>
struct Offsets<void> : NoScales<0> {};

struct Int4 {};
namespace formats {
using int4 = Int4;
}
template <class Float>
inline Vec<float> decode_half(Words bits) {
  return decode<Float>(bits);
}
template <>
inline Vec<float> decode_half<Int4>(Words bits) {
  return __builtin_convertvector(reinterpret<Mask<float>>((bits ^ 8u) - 8u), Vec<float>);
}

// The halves of kLanes<float> / 2 bytes, one in each lane.
template <int... kLane>
inline Words halves(const uint8_t* from, LaneList<kLane...>) {
  typedef uint8_t Pairs __attribute__((vector_size(kVectorBytes / 8)));
  const Pairs pairs = load_bits<Pairs>(from);
  const Words doubled =
      __builtin_convertvector(__builtin_shufflevector(pairs, pairs, kLane / 2 ...), Words);
  return doubled >> Words{(kLane % 2 * 4u)...} & 15u;
}

// Elements of a row from `column`, a multiple of kLanes<float>.
template <class Format>
struct Row {
  static constexpr int64_t kPacked = 1;
  static Vec<float> values(const void* row, int64_t column, int64_t count) {
    return load_some<float>(static_cast<const stored<ELEMENT_X, Format>*>(row) + column, 1, count);
  }
};
template <class Format>
struct PackedRow {
  static constexpr int64_t kPacked = 2;
  static Vec<float> values(const void* row, int64_t column, int64_t count) {
    const auto* from = static_cast<const uint8_t*>(row) + column / 2;
    uint8_t some[kLanes<float> / 2] = {};
    if (count < kLanes<float>) {
      __builtin_memcpy(some, from, static_cast<size_t>(count / 2));
      from = some;
    }
    return decode_half<Format>(halves(from, LanesOf<kLanes<float>>()));
  }
};
template <>
struct Row<formats::int4> : PackedRow<formats::int4> {};
template <>
struct Row<formats::float4_e2m1fn> : PackedRow<formats::float4_e2m1fn> {};

}  // namespace bringup_kernels

using namespace bringup_kernels;
using Elements = Row<formats::FORMAT>;

namespace {

struct Call {
  Scales<scale_element<SCALE>> scale{};
  Offsets<OFFSET> offset{};

  // Null, or why it cannot be.
  const char* read(void** args) {
    const DLTensor& out = bringup::tensor(args[7]);
    const int64_t* sizes = out.shape;
    const auto block = bringup::list<int64_t>(args[3]);
    if (block.size() != 2) return "block must be two: rows and columns";
    if (!is_stored<ELEMENT_X, formats::FORMAT>)
      return "uint8 needs a format, and only uint8 has one";
    if (bringup::scalar<int64_t>(args[4]) != Elements::kPacked) {
      return "packed must be 2 for formats of 4 bits, and 1 for others";
    }
    if (!scale.read(args[1], sizes[0], sizes[1], sizes[2], block[0], block[1])) {
      return "scale must have one element, or one for each block, in each dimension";
    }
    if (!offset.read(args[2], sizes[0], sizes[1], sizes[2], block[0], block[1])) {
      return "offset must have one element, or one for each block, in each dimension";
    }
    return nullptr;
  }
};

}  // namespace

const char* bringup_can_implement(void** args, int32_t, const bringup_ctx*) {
  return Call().read(args);
}

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  Call call;
  if (const char* why = call.read(args)) return bringup::fail(ctx, why);
  const DLTensor& x = bringup::tensor(args[0]);
  const DLTensor& out = bringup::tensor(args[7]);
  const int64_t rows = out.shape[1], columns = out.shape[2];
  bringup::parallel_for(
      ctx, out.shape[0] * rows, 1 + 32768 / (columns + 1), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const auto* from = static_cast<const ELEMENT_X*>(x.data) + i * x.shape[2];
          auto* to = static_cast<ELEMENT_OUT*>(out.data) + i * columns;
          Call row = call;
          row.scale.select(i / rows, i % rows);
          row.offset.select(i / rows, i % rows);
          for (int64_t j = 0; j < columns; j += kLanes<float>) {
            const int64_t lanes = smaller(columns - j, kLanes<float>);
            const Vec<float> value =
                Elements::values(from, j, lanes) - row.offset.of_columns(j, lanes);
            store_some<float>(to + j, value * row.scale.of_columns(j, lanes), lanes);
          }
        }
      });
  return 0;
}
