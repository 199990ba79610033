// The vector unit: element by element over the first `count` elements, as the hardware orders it.
// half and bfloat16 compute as float and round once for each operation.
#ifndef BRINGUP_ASCENDC_VECTOR_H_
#define BRINGUP_ASCENDC_VECTOR_H_

#include "bringup/ascendc/tensor.h"

namespace bringup {
namespace ascendc {

// What arithmetic is done in.
template <class Element>
struct Wide {
  using type = Element;
};
template <>
struct Wide<half> {
  using type = float;
};
template <>
struct Wide<bfloat16> {
  using type = float;
};
template <class Element>
using wide = typename Wide<Element>::type;

template <class Element, class Result, class Function>
void each(AscendC::LocalTensor<Result>& target, const AscendC::LocalTensor<Element>& source,
          uint32_t count, Function function) {
  target.check(0, count);
  source.check(0, count);
  Result* to = target.GetPhyAddr();
  const Element* from = source.GetPhyAddr();
  for (uint32_t i = 0; i < count; ++i) to[i] = Result(function(wide<Element>(from[i])));
}

template <class Element, class Function>
void each(AscendC::LocalTensor<Element>& target, const AscendC::LocalTensor<Element>& first,
          const AscendC::LocalTensor<Element>& second, uint32_t count, Function function) {
  target.check(0, count);
  first.check(0, count);
  second.check(0, count);
  Element* to = target.GetPhyAddr();
  const Element* a = first.GetPhyAddr();
  const Element* b = second.GetPhyAddr();
  for (uint32_t i = 0; i < count; ++i) {
    to[i] = Element(function(wide<Element>(a[i]), wide<Element>(b[i])));
  }
}

}  // namespace ascendc
}  // namespace bringup

namespace AscendC {

#define BRINGUP_ASCENDC_UNARY(NAME, EXPRESSION)                                                \
  template <class Element>                                                                     \
  void NAME(LocalTensor<Element> target, const LocalTensor<Element>& source, uint32_t count) { \
    using Wide = bringup::ascendc::wide<Element>;                                              \
    bringup::ascendc::each(target, source, count, [](Wide x) -> Wide { return EXPRESSION; });  \
  }
BRINGUP_ASCENDC_UNARY(Abs, x < Wide(0) ? Wide(-x) : x)
BRINGUP_ASCENDC_UNARY(Relu, x > Wide(0) ? x : Wide(0))
BRINGUP_ASCENDC_UNARY(Exp, __builtin_expf(x))
BRINGUP_ASCENDC_UNARY(Ln, __builtin_logf(x))
BRINGUP_ASCENDC_UNARY(Sqrt, __builtin_sqrtf(x))
BRINGUP_ASCENDC_UNARY(Rsqrt, 1 / __builtin_sqrtf(x))
BRINGUP_ASCENDC_UNARY(Reciprocal, 1 / x)
BRINGUP_ASCENDC_UNARY(Not, Wide(~x))
#undef BRINGUP_ASCENDC_UNARY

#define BRINGUP_ASCENDC_BINARY(NAME, EXPRESSION)                               \
  template <class Element>                                                     \
  void NAME(LocalTensor<Element> target, const LocalTensor<Element>& first,    \
            const LocalTensor<Element>& second, uint32_t count) {              \
    using Wide = bringup::ascendc::wide<Element>;                              \
    bringup::ascendc::each(target, first, second, count,                       \
                           [](Wide x, Wide y) -> Wide { return EXPRESSION; }); \
  }
BRINGUP_ASCENDC_BINARY(Add, x + y)
BRINGUP_ASCENDC_BINARY(Sub, x - y)
BRINGUP_ASCENDC_BINARY(Mul, x* y)
BRINGUP_ASCENDC_BINARY(Div, x / y)
BRINGUP_ASCENDC_BINARY(Max, x > y ? x : y)
BRINGUP_ASCENDC_BINARY(Min, x < y ? x : y)
BRINGUP_ASCENDC_BINARY(And, Wide(x& y))
BRINGUP_ASCENDC_BINARY(Or, Wide(x | y))
#undef BRINGUP_ASCENDC_BINARY

#define BRINGUP_ASCENDC_SCALAR(NAME, EXPRESSION)                                               \
  template <class Element>                                                                     \
  void NAME(LocalTensor<Element> target, const LocalTensor<Element>& source, Element scalar,   \
            uint32_t count) {                                                                  \
    using Wide = bringup::ascendc::wide<Element>;                                              \
    const Wide y = Wide(scalar);                                                               \
    bringup::ascendc::each(target, source, count, [y](Wide x) -> Wide { return EXPRESSION; }); \
  }
BRINGUP_ASCENDC_SCALAR(Adds, x + y)
BRINGUP_ASCENDC_SCALAR(Muls, x* y)
BRINGUP_ASCENDC_SCALAR(Maxs, x > y ? x : y)
BRINGUP_ASCENDC_SCALAR(Mins, x < y ? x : y)
BRINGUP_ASCENDC_SCALAR(LeakyRelu, x > Wide(0) ? x : Wide(x * y))
#undef BRINGUP_ASCENDC_SCALAR

template <class Element>
void Duplicate(LocalTensor<Element> target, Element value, uint32_t count) {
  target.check(0, count);
  for (uint32_t i = 0; i < count; ++i) target.GetPhyAddr()[i] = value;
}

// target += source * scalar
template <class Element>
void Axpy(LocalTensor<Element> target, const LocalTensor<Element>& source, Element scalar,
          uint32_t count) {
  using Wide = bringup::ascendc::wide<Element>;
  const Wide factor = Wide(scalar);
  const LocalTensor<Element> sum = target;
  bringup::ascendc::each(target, source, sum, count,
                         [factor](Wide x, Wide y) -> Wide { return y + x * factor; });
}

enum class RoundMode : uint8_t {
  CAST_NONE,
  CAST_RINT,
  CAST_FLOOR,
  CAST_CEIL,
  CAST_ROUND,
  CAST_TRUNC
};

// From one element type to another; the mode says how a float becomes an integer.
template <class Result, class Element>
void Cast(LocalTensor<Result> target, const LocalTensor<Element>& source, RoundMode mode,
          uint32_t count) {
  using Wide = bringup::ascendc::wide<Element>;
  bringup::ascendc::each(target, source, count, [mode](Wide x) -> bringup::ascendc::wide<Result> {
    using To = bringup::ascendc::wide<Result>;
    if constexpr (Wide(1) / Wide(2) != Wide(0) && To(1) / To(2) == To(0)) {
      switch (mode) {
        case RoundMode::CAST_FLOOR:
          return To(__builtin_floorf(x));
        case RoundMode::CAST_CEIL:
          return To(__builtin_ceilf(x));
        case RoundMode::CAST_ROUND:
          return To(__builtin_roundf(x));
        case RoundMode::CAST_RINT:
          return To(__builtin_rintf(x));
        default:
          return To(x);
      }
    } else {
      return To(x);
    }
  });
}

// target[0] = the sum of source; `work` is the hardware's scratch and stays as it is.
template <class Element>
void ReduceSum(LocalTensor<Element> target, const LocalTensor<Element>& source,
               const LocalTensor<Element>& work, int32_t count) {
  (void)work;
  source.check(0, static_cast<uint32_t>(count));
  bringup::ascendc::wide<Element> sum = 0;
  for (int32_t i = 0; i < count; ++i) sum += source.GetPhyAddr()[i];
  target(0) = Element(sum);
}

}  // namespace AscendC

#endif  // BRINGUP_ASCENDC_VECTOR_H_
