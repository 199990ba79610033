// random_ of integers: one of the whole numbers from the first to the last, all as likely.
#include "bringup/random.h"

#include <limits>

#include "bringup/kernel.h"

template <class T>
static T drawn(bringup_random random, int64_t first, int64_t last) {
  const uint64_t count = static_cast<uint64_t>(last) - static_cast<uint64_t>(first) + 1;
  const uint64_t bits = bringup_random_pair(random, 0);
  // All numbers of 64 bits are one more than an integer has room for.
  return static_cast<T>(static_cast<uint64_t>(first) + (count == 0 ? bits : bits % count));
}

template <class T>
T random_all(T, bringup_random random) {
  return drawn<T>(random, 0, std::numeric_limits<T>::max());
}

template <class T>
T random_to(T, int64_t to, bringup_random random) {
  return drawn<T>(random, 0, to - 1);
}

template <class T>
T random_from(T, int64_t from, const int64_t* to, bringup_random random) {
  return drawn<T>(random, from, to != nullptr ? *to - 1 : std::numeric_limits<T>::max());
}
