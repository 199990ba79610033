// Whether two numbers are the same: what patterns, keys and updates compare numbers by.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace bringup::engine {

// To the bit: 0.0 is not -0.0, and NaN is the same NaN.
inline bool same_number(double left, double right) {
  return std::bit_cast<uint64_t>(left) == std::bit_cast<uint64_t>(right);
}

inline constexpr double kWholeEnd = 0x1p63;  // whole numbers are below it

// Without rounding; -0.0 is no whole number.
inline bool same_number(int64_t whole, double real) {
  return real >= -kWholeEnd && real < kWholeEnd && std::trunc(real) == real &&
         static_cast<int64_t>(real) == whole && (whole != 0 || !std::signbit(real));
}

// Whether low <= whole <= high, without rounding.
inline bool is_between(double low, int64_t whole, double high) {
  const bool above =
      low < -kWholeEnd || (low < kWholeEnd && static_cast<int64_t>(std::ceil(low)) <= whole);
  const bool below =
      high >= kWholeEnd || (high >= -kWholeEnd && whole <= static_cast<int64_t>(std::floor(high)));
  return above && below;
}

}  // namespace bringup::engine
