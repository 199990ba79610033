#include "grid/c_call.h"

#include <cstring>
#include <utility>

namespace bringup::grid {
namespace {

constexpr size_t kFewWords = 8;

template <class T, size_t>
using Repeated = T;

template <size_t... I, size_t... F, size_t... W>
int64_t call_with(const void* function, const int64_t* integers, const double* floats,
                  const int64_t* words, std::index_sequence<I...>, std::index_sequence<F...>,
                  std::index_sequence<W...>) {
  using Function =
      int64_t (*)(Repeated<int64_t, I>..., Repeated<double, F>..., Repeated<int64_t, W>...);
  return reinterpret_cast<Function>(const_cast<void*>(function))(integers[I]..., floats[F]...,
                                                                 words[W]...);
}

}  // namespace

void Places::put_floating(double bits) {
  if (float_count_ < kFloatRegisters) {
    floats_[float_count_++] = bits;
  } else {
    std::memcpy(&words_[word_count_++], &bits, sizeof bits);
  }
}

// The low half of the register or word; nothing looks at the other one.
void Places::put(float floating) {
  double bits = 0;
  std::memcpy(&bits, &floating, sizeof floating);
  put_floating(bits);
}

int64_t Places::call(const void* function) {
  const auto with = [&](auto words) {
    return call_with(function, integers_, floats_, words_,
                     std::make_index_sequence<kIntRegisters>(),
                     std::make_index_sequence<kFloatRegisters>(), words);
  };
  if (word_count_ == 0) return with(std::make_index_sequence<0>());
  const size_t passed = word_count_ <= kFewWords ? kFewWords : kMaxWords;
  std::memset(words_ + word_count_, 0, (passed - word_count_) * sizeof(int64_t));
  if (passed == kFewWords) return with(std::make_index_sequence<kFewWords>());
  return with(std::make_index_sequence<kMaxWords>());
}

}  // namespace bringup::grid
