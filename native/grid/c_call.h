// Calling any C function of scalars and addresses, without a compiler. Integers fill one set of
// registers, floating-point numbers another, what is left over goes to the stack in order; so one
// call that fills everything serves every signature, and a function does not look at what it has
// not declared.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bringup::grid {

#if defined(__x86_64__)
constexpr size_t kIntRegisters = 6;  // System V ABI, 3.2.3
#elif defined(__aarch64__)
constexpr size_t kIntRegisters = 8;  // AAPCS64, 6.8.2
#else
#error "bringup runs on x86-64 and aarch64"
#endif
constexpr size_t kFloatRegisters = 8;
constexpr size_t kMaxWords = 64;

// Where the values of one call lie: at most kMaxWords, and one more before them that is no
// floating- point number.
class Places {
 public:
  void put(int64_t integer) {
    if (integer_count_ < kIntRegisters) {
      integers_[integer_count_++] = integer;
    } else {
      words_[word_count_++] = integer;
    }
  }
  void put(const void* address) { put(static_cast<int64_t>(reinterpret_cast<intptr_t>(address))); }
  void put(double floating) { put_floating(floating); }
  void put(float floating);

  // What the first integer or address becomes, in place.
  void set_first(const void* address) {
    integers_[0] = static_cast<int64_t>(reinterpret_cast<intptr_t>(address));
  }

  // What the function returns in the first register of integers; of one that returns nothing,
  // anything. Throws what it throws.
  int64_t call(const void* function);

 private:
  void put_floating(double bits);

  int64_t integers_[kIntRegisters] = {};
  double floats_[kFloatRegisters] = {};
  int64_t words_[kMaxWords];
  size_t integer_count_ = 0;
  size_t float_count_ = 0;
  size_t word_count_ = 0;
};

}  // namespace bringup::grid
