#include "runtime/launch_block.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace bringup::runtime {
namespace {

constexpr size_t kAlignment = alignof(std::max_align_t);

}  // namespace

// All of a block's memory: arguments are bumped from a piece inside, then from chained chunks; none
// moves or goes before the block. The size fits malloc's thread cache: there is one a launch.
struct LaunchBlock::State {
  struct Chunk {
    Chunk* next;
  };

  static constexpr size_t kInside = 752;
  static constexpr size_t kChunk = 4096;
  static constexpr int32_t kFewArguments = 16;

  State() noexcept {}
  ~State() {
    while (chunks != nullptr) {
      Chunk* next = chunks->next;
      std::free(chunks);
      chunks = next;
    }
    while (others != nullptr) delete std::exchange(others, std::exchange(others->others, nullptr));
  }
  State& operator=(State&&) = delete;

  alignas(kAlignment) std::byte inside[kInside];
  std::byte* free_begin = inside;
  std::byte* free_end = inside + kInside;
  Chunk* chunks = nullptr;
  State* others = nullptr;  // the first of a chain
  void* few_pointers[kFewArguments];
  ArgKind few_kinds[kFewArguments];
  void** pointers = few_pointers;
  ArgKind* kinds = few_kinds;
  int32_t size = 0;
  int32_t capacity = kFewArguments;

  void* take(size_t bytes) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (static_cast<size_t>(free_end - free_begin) < bytes) add_chunk(bytes);
    std::byte* region = free_begin;
    free_begin += bytes;
    return region;
  }

  template <class T>
  T* take_array(size_t count) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kAlignment);
    return static_cast<T*>(take(std::max<size_t>(count, 1) * sizeof(T)));
  }

  template <class T>
  T* copy_of(const T& value) {
    return new (take(sizeof(T))) T(value);
  }

  template <class T>
  T* copy_of(std::span<const T> values) {
    T* copy = take_array<T>(values.size());
    std::copy(values.begin(), values.end(), copy);
    return copy;
  }

  void append(ArgKind kind, void* argument) {
    if (size == capacity) widen();
    kinds[size] = kind;
    pointers[size] = argument;
    ++size;
  }

  DLTensor* copy_of(const TensorDesc& tensor) {
    if (tensor.sizes.size() != tensor.strides.size()) {
      throw std::invalid_argument("a tensor of rank " + std::to_string(tensor.sizes.size()) +
                                  " needs as many strides, got " +
                                  std::to_string(tensor.strides.size()));
    }
    const size_t rank = tensor.sizes.size();
    auto* extents = take_array<int64_t>(2 * rank);
    std::copy(tensor.sizes.begin(), tensor.sizes.end(), extents);
    std::copy(tensor.strides.begin(), tensor.strides.end(), extents + rank);
    return copy_of(DLTensor{tensor.data, tensor.device, static_cast<int32_t>(rank), tensor.dtype,
                            extents, extents + rank, 0});
  }

  template <class T>
  void append_list(ArgKind kind, std::span<const T> values) {
    append(kind, copy_of(bringup_list{copy_of(values), static_cast<int64_t>(values.size())}));
  }

 private:
  void add_chunk(size_t bytes) {
    constexpr size_t header = (sizeof(Chunk) + kAlignment - 1) / kAlignment * kAlignment;
    const size_t total = std::max(kChunk, header + bytes);
    auto* memory = static_cast<std::byte*>(std::malloc(total));
    if (memory == nullptr) throw std::bad_alloc();
    chunks = new (memory) Chunk{chunks};
    free_begin = memory + header;
    free_end = memory + total;
  }

  void widen() {
    const auto wanted = static_cast<size_t>(2 * capacity);
    void** more_pointers = take_array<void*>(wanted);
    auto* more_kinds = take_array<ArgKind>(wanted);
    std::copy(pointers, pointers + size, more_pointers);
    std::copy(kinds, kinds + size, more_kinds);
    pointers = more_pointers;
    kinds = more_kinds;
    capacity *= 2;
  }
};

LaunchBlock::LaunchBlock() : state_(std::make_unique<State>()) {
  static_assert(sizeof(State) <= 1032, "larger than what glibc's thread cache keeps");
}
LaunchBlock::~LaunchBlock() = default;
LaunchBlock::LaunchBlock(LaunchBlock&&) noexcept = default;
LaunchBlock& LaunchBlock::operator=(LaunchBlock&&) noexcept = default;

void LaunchBlock::add_none() { state_->append(ArgKind::kNone, nullptr); }

void LaunchBlock::add_tensor(const TensorDesc& tensor) {
  state_->append(ArgKind::kTensor, state_->copy_of(tensor));
}

void LaunchBlock::add_int(int64_t value) { state_->append(ArgKind::kInt, state_->copy_of(value)); }

void LaunchBlock::add_float(double value) {
  state_->append(ArgKind::kFloat, state_->copy_of(value));
}

void LaunchBlock::add_string(std::string_view value) {
  char* copy = state_->take_array<char>(value.size() + 1);
  std::copy(value.begin(), value.end(), copy);
  copy[value.size()] = '\0';
  state_->append(ArgKind::kString, copy);
}

void LaunchBlock::add_int_list(std::span<const int64_t> values) {
  state_->append_list(ArgKind::kIntList, values);
}

void LaunchBlock::add_float_list(std::span<const double> values) {
  state_->append_list(ArgKind::kFloatList, values);
}

void LaunchBlock::add_tensor_list(std::span<const std::optional<TensorDesc>> tensors) {
  auto** copies = state_->take_array<DLTensor*>(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    copies[i] = tensors[i] ? state_->copy_of(*tensors[i]) : nullptr;
  }
  const bringup_list list{copies, static_cast<int64_t>(tensors.size())};
  state_->append(ArgKind::kTensorList, state_->copy_of(list));
}

void LaunchBlock::add_all(LaunchBlock other) {
  State* const added = other.state_.release();
  State** last = &added->others;
  while (*last != nullptr) last = &(*last)->others;
  *last = std::exchange(state_->others, added);
  for (int32_t i = 0; i < added->size; ++i) state_->append(added->kinds[i], added->pointers[i]);
}

void** LaunchBlock::args() const noexcept { return state_->pointers; }

const uint8_t* LaunchBlock::kinds() const noexcept {
  return reinterpret_cast<const uint8_t*>(state_->kinds);
}

int32_t LaunchBlock::size() const noexcept { return state_->size; }

void* LaunchBlock::detach() noexcept { return state_.release(); }

void LaunchBlock::free_detached(void* detached) noexcept { delete static_cast<State*>(detached); }

}  // namespace bringup::runtime
