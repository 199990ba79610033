#include "runtime/launch_block.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace bringup::runtime {
namespace {

// A list and how many elements fit where its data lies.
struct ListCell {
  bringup_list list;
  int64_t capacity;
};

constexpr size_t kAlignment = alignof(std::max_align_t);

}  // namespace

// All of a block's memory: arguments are bumped from a piece inside, then from chunks that are
// chained. Nothing moves, nothing is given back before the block goes. The size keeps one block
// within malloc's thread cache: it is allocated for every asynchronous launch.
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
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  alignas(kAlignment) std::byte inside[kInside];
  std::byte* free_begin = inside;
  std::byte* free_end = inside + kInside;
  Chunk* chunks = nullptr;
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
  T* copy_of(std::span<const T> values, size_t capacity_wanted) {
    T* copy = take_array<T>(capacity_wanted);
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
    const auto count = static_cast<int64_t>(values.size());
    append(kind, copy_of(ListCell{{copy_of(values, values.size()), count}, count}));
  }

  template <class T>
  void assign_list(void* argument, std::span<const T> values) {
    auto* cell = static_cast<ListCell*>(argument);
    const auto count = static_cast<int64_t>(values.size());
    if (count > cell->capacity) {
      const int64_t wanted = std::max(count, 2 * cell->capacity);
      cell->list.data = take_array<T>(static_cast<size_t>(wanted));
      cell->capacity = wanted;
    }
    if (count > 0) {  // memmove: the values may be the block's own
      std::memmove(const_cast<void*>(cell->list.data), values.data(), values.size_bytes());
    }
    cell->list.size = count;
  }

  void require(int32_t index) const {
    if (index < 0 || index >= size) {
      throw std::invalid_argument("no argument " + std::to_string(index) +
                                  " in a launch block of " + std::to_string(size));
    }
  }

  void* at(int32_t index, ArgKind kind) const {
    require(index);
    if (kinds[index] != kind) {
      throw std::invalid_argument("argument " + std::to_string(index) + " of a launch block is " +
                                  kind_name(kinds[index]) + ", not " + kind_name(kind));
    }
    return pointers[index];
  }

  static const char* kind_name(ArgKind kind) {
    switch (kind) {
      case ArgKind::kNone:
        return "None";
      case ArgKind::kTensor:
        return "a Tensor";
      case ArgKind::kInt:
        return "an int";
      case ArgKind::kFloat:
        return "a float";
      case ArgKind::kString:
        return "a str";
      case ArgKind::kIntList:
        return "an int[]";
      case ArgKind::kFloatList:
        return "a float[]";
      case ArgKind::kTensorList:
        return "a Tensor[]";
    }
    return "unknown";
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

void LaunchBlock::add_tensor_list(std::span<const TensorDesc> tensors) {
  auto** copies = state_->take_array<DLTensor*>(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) copies[i] = state_->copy_of(tensors[i]);
  const auto count = static_cast<int64_t>(tensors.size());
  state_->append(ArgKind::kTensorList, state_->copy_of(ListCell{{copies, count}, count}));
}

void** LaunchBlock::args() noexcept { return state_->pointers; }

const uint8_t* LaunchBlock::kinds() const noexcept {
  return reinterpret_cast<const uint8_t*>(state_->kinds);
}

int32_t LaunchBlock::size() const noexcept { return state_->size; }

ArgKind LaunchBlock::kind(int32_t index) const {
  state_->require(index);
  return state_->kinds[index];
}

void* LaunchBlock::detach() noexcept { return state_.release(); }

void LaunchBlock::free_detached(void* detached) noexcept { delete static_cast<State*>(detached); }

void LaunchBlock::set_int(int32_t index, int64_t value) {
  *static_cast<int64_t*>(state_->at(index, ArgKind::kInt)) = value;
}

void LaunchBlock::set_float(int32_t index, double value) {
  *static_cast<double*>(state_->at(index, ArgKind::kFloat)) = value;
}

void LaunchBlock::set_int_list(int32_t index, std::span<const int64_t> values) {
  state_->assign_list(state_->at(index, ArgKind::kIntList), values);
}

void LaunchBlock::set_float_list(int32_t index, std::span<const double> values) {
  state_->assign_list(state_->at(index, ArgKind::kFloatList), values);
}

namespace {

TensorDesc described(const DLTensor& tensor) {
  const auto rank = static_cast<size_t>(tensor.ndim);
  return {tensor.data, tensor.device, tensor.dtype, {tensor.shape, rank}, {tensor.strides, rank}};
}

template <class T>
std::span<const T> elements(const void* argument) {
  const bringup_list& list = static_cast<const ListCell*>(argument)->list;
  return {static_cast<const T*>(list.data), static_cast<size_t>(list.size)};
}

}  // namespace

LaunchBlock LaunchBlock::clone() const {
  LaunchBlock copy;
  for (int32_t i = 0; i < size(); ++i) {
    const void* argument = state_->pointers[i];
    switch (state_->kinds[i]) {
      case ArgKind::kNone:
        copy.add_none();
        break;
      case ArgKind::kTensor:
        copy.add_tensor(described(*static_cast<const DLTensor*>(argument)));
        break;
      case ArgKind::kInt:
        copy.add_int(*static_cast<const int64_t*>(argument));
        break;
      case ArgKind::kFloat:
        copy.add_float(*static_cast<const double*>(argument));
        break;
      case ArgKind::kString:
        copy.add_string(static_cast<const char*>(argument));
        break;
      case ArgKind::kIntList:
        copy.add_int_list(elements<int64_t>(argument));
        break;
      case ArgKind::kFloatList:
        copy.add_float_list(elements<double>(argument));
        break;
      case ArgKind::kTensorList: {
        std::vector<TensorDesc> tensors;
        for (const DLTensor* tensor : elements<const DLTensor*>(argument)) {
          tensors.push_back(described(*tensor));
        }
        copy.add_tensor_list(tensors);
        break;
      }
    }
  }
  return copy;
}

}  // namespace bringup::runtime
