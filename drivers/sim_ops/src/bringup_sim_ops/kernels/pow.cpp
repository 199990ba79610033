// Powers of integers, too: they wrap around, and a negative exponent leaves 1 / self, cut to an
// integer. Of floating point numbers those that torch has products for.
#include <cmath>
#include <type_traits>

template <class T>
T pow(T self, T exponent) {
  if constexpr (std::is_integral_v<T>) {
    if (exponent < 0) {
      if (self == T(1)) return T(1);
      return self == T(-1) ? (exponent % 2 == 0 ? T(1) : T(-1)) : T(0);
    }
    T result = 1;
    for (T factor = self; exponent != 0; factor = static_cast<T>(factor * factor)) {
      if (exponent % 2 != 0) result = static_cast<T>(result * factor);
      exponent = static_cast<T>(exponent / 2);
    }
    return result;
  } else {
    if (exponent == T(1)) return self;
    if (exponent == T(2)) return self * self;
    if (exponent == T(3)) return self * self * self;
    return std::pow(self, exponent);
  }
}
