#include "torch/graphs/moving_call.h"

#include <ATen/TensorIterator.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/copy_native.h>

#include <array>
#include <cstring>
#include <optional>
#include <utility>

namespace bringup::torch_ext::graphs {
namespace {

constexpr size_t kMost = 4;  // operands

using Loop = void (*)(char** data, const int64_t* strides, int64_t count);

at::TensorIteratorConfig iterator_into(const at::Tensor& target) {
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).resize_outputs(false).add_owned_output(target);
  return config;
}

// A loop and what it walks over.
class Moves {
 public:
  Moves(at::TensorIterator iterator, Loop loop)
      : iterator_(std::move(iterator)),
        loop_(loop),
        is_row_(iterator_.ndim() == 1 && iterator_.numel() < at::internal::GRAIN_SIZE) {
    for (int i = 0; i < iterator_.ntensors(); ++i) {
      data_[i] = static_cast<char*>(iterator_.data_ptr(i));
      if (is_row_) strides_[i] = iterator_.strides(i)[0];
    }
  }

  // With each operand so many bytes behind where it begins.
  void run(const std::array<int64_t, kMost>& offsets = {}) {
    std::array<char*, kMost> row{};
    if (is_row_) {
      for (size_t k = 0; k < kMost; ++k) row[k] = data_[k] + offsets[k];
      return loop_(row.data(), strides_.data(), iterator_.numel());
    }
    const int count = iterator_.ntensors();
    const auto rows = [&](char** data, const int64_t* strides, int64_t elements, int64_t outer) {
      std::array<char*, kMost> row{};
      for (int k = 0; k < count; ++k) row[k] = data[k] + offsets[k];
      for (int64_t i = 0; i < outer; ++i) {
        loop_(row.data(), strides, elements);
        for (int k = 0; k < count; ++k) row[k] += strides[count + k];
      }
    };
    iterator_.for_each(rows, at::internal::GRAIN_SIZE);
  }

 private:
  at::TensorIterator iterator_;
  Loop loop_;
  bool is_row_;
  std::array<char*, kMost> data_{};
  std::array<int64_t, kMost> strides_{};
};

class MovingCall final : public PreparedCall {
 public:
  MovingCall(const Operators& operators, std::vector<Moves> moves)
      : PreparedCall(operators), moves_(std::move(moves)) {}

 private:
  bool run_kernel() override {
    for (Moves& moves : moves_) moves.run();
    return true;
  }

  std::vector<Moves> moves_;
};

class IndexedCall final : public PreparedCall {
 public:
  // A slice, and the bytes from one to the next.
  struct Step {
    int64_t chosen;
    int64_t other;
  };

  IndexedCall(const Operators& operators, Moves slice, at::Tensor index, int64_t limit, Step step,
              bool from_chosen)
      : PreparedCall(operators),
        slice_(std::move(slice)),
        index_(std::move(index)),
        limit_(limit),
        step_(step),
        from_chosen_(from_chosen) {}

 private:
  bool run_kernel() override {
    return index_.scalar_type() == at::kLong ? run_with(index_.const_data_ptr<int64_t>())
                                             : run_with(index_.const_data_ptr<int32_t>());
  }

  template <class Index>
  bool run_with(const Index* index) {
    const int64_t count = index_.numel();
    for (int64_t i = 0; i < count; ++i) {
      if (index[i] < 0 || index[i] >= limit_) return false;  // torch raises
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t chosen = index[i] * step_.chosen;
      const int64_t other = i * step_.other;
      slice_.run(from_chosen_ ? std::array<int64_t, kMost>{other, chosen}
                              : std::array<int64_t, kMost>{chosen, other});
    }
    return true;
  }

  Moves slice_;
  at::Tensor index_;
  int64_t limit_;
  Step step_;
  bool from_chosen_;
};

// torch's own conversion: of half types its vector code rounds NaN otherwise than its scalar code.
class ConvertingCall final : public PreparedCall {
 public:
  ConvertingCall(const Operators& operators, at::Tensor source, at::Tensor target)
      : PreparedCall(operators), source_(std::move(source)), target_(std::move(target)) {}

 private:
  bool run_kernel() override {
    at::native::copy_(target_, source_, false);
    return true;
  }

  at::Tensor source_, target_;
};

// An element of `kBytes`.
template <size_t kBytes>
struct Bits {
  alignas(kBytes) char bytes[kBytes];
};

template <size_t kBytes>
void copy_row(char** data, const int64_t* strides, int64_t count) {
  if (strides[0] == kBytes && strides[1] == kBytes) {
    std::memcpy(data[0], data[1], count * kBytes);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(data[0] + i * strides[0], data[1] + i * strides[1], kBytes);
  }
}

template <size_t kBytes>
void choose_row(char** data, const int64_t* strides, int64_t count) {
  using Element = Bits<kBytes>;
  if (strides[0] == kBytes && strides[1] == 1 && strides[2] == kBytes && strides[3] == kBytes) {
    auto* const out = reinterpret_cast<Element*>(data[0]);
    const auto* const condition = reinterpret_cast<const bool*>(data[1]);
    const auto* const yes = reinterpret_cast<const Element*>(data[2]);
    const auto* const no = reinterpret_cast<const Element*>(data[3]);
    for (int64_t i = 0; i < count; ++i) out[i] = condition[i] ? yes[i] : no[i];
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const bool first = *reinterpret_cast<const bool*>(data[1] + i * strides[1]);
    const char* const from = first ? data[2] + i * strides[2] : data[3] + i * strides[3];
    std::memcpy(data[0] + i * strides[0], from, kBytes);
  }
}

// The loop for elements of this size; null where none is.
Loop by_size(size_t bytes, std::array<Loop, 5> loops) {
  for (size_t i = 0; i < loops.size(); ++i) {
    if (bytes == size_t{1} << i) return loops[i];
  }
  return nullptr;
}

// Conversions that are one instruction of the processor, or exact. bool is read as torch does.
template <class To, class From>
To converted(const char* from) {
  if constexpr (std::is_same_v<From, bool>) {
    return static_cast<To>(*from != 0);
  } else {
    From value;
    std::memcpy(&value, from, sizeof(value));
    return static_cast<To>(value);
  }
}

template <class To, class From>
void convert_row(char** data, const int64_t* strides, int64_t count) {
  if (strides[0] == sizeof(To) && strides[1] == sizeof(From)) {
    for (int64_t i = 0; i < count; ++i) {
      reinterpret_cast<To*>(data[0])[i] = converted<To, From>(data[1] + i * sizeof(From));
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const To value = converted<To, From>(data[1] + i * strides[1]);
    std::memcpy(data[0] + i * strides[0], &value, sizeof(value));
  }
}

template <class From>
Loop conversion_from(at::ScalarType to) {
  switch (to) {
    case at::kBool:
      return &convert_row<bool, From>;
    case at::kFloat:
      return &convert_row<float, From>;
    case at::kDouble:
      return &convert_row<double, From>;
    default:
      break;
  }
  if constexpr (!std::is_floating_point_v<From>) {  // out of range torch gives what the loop gives
    if (to == at::kByte) return &convert_row<uint8_t, From>;
    if (to == at::kInt) return &convert_row<int32_t, From>;
    if (to == at::kLong) return &convert_row<int64_t, From>;
  }
  return nullptr;
}

Loop conversion(at::ScalarType from, at::ScalarType to) {
  switch (from) {
    case at::kBool:
      return conversion_from<bool>(to);
    case at::kByte:
      return conversion_from<uint8_t>(to);
    case at::kInt:
      return conversion_from<int32_t>(to);
    case at::kLong:
      return conversion_from<int64_t>(to);
    case at::kFloat:
      return conversion_from<float>(to);
    case at::kDouble:
      return conversion_from<double>(to);
    default:
      return nullptr;
  }
}

// Null where none is; torch converts all.
std::optional<Moves> copying(const at::Tensor& source, const at::Tensor& target) {
  const Loop loop = source.dtype() == target.dtype()
                        ? by_size(target.itemsize(), {copy_row<1>, copy_row<2>, copy_row<4>,
                                                      copy_row<8>, copy_row<16>})
                        : conversion(source.scalar_type(), target.scalar_type());
  if (loop == nullptr) return std::nullopt;
  return Moves(iterator_into(target).add_owned_const_input(source).build(), loop);
}

}  // namespace

Preparation prepare_copy(const Operators& operators, const at::Tensor& source,
                         const at::Tensor& target) {
  auto moves = copying(source, target);
  if (!moves) return {std::make_unique<ConvertingCall>(operators, source, target)};
  return {std::make_unique<MovingCall>(operators, std::vector{*std::move(moves)})};
}

Preparation prepare_where(const Operators& operators, const at::Tensor& condition,
                          const at::Tensor& yes, const at::Tensor& no, const at::Tensor& target) {
  const Loop loop = by_size(target.itemsize(), {choose_row<1>, choose_row<2>, choose_row<4>,
                                                choose_row<8>, choose_row<16>});
  if (condition.scalar_type() != at::kBool || yes.dtype() != target.dtype() ||
      no.dtype() != target.dtype() || loop == nullptr) {
    return {nullptr, kConverts};
  }
  auto iterator = iterator_into(target)
                      .add_owned_const_input(condition)
                      .add_owned_const_input(yes)
                      .add_owned_const_input(no)
                      .build();
  return {std::make_unique<MovingCall>(operators, std::vector{Moves(std::move(iterator), loop)})};
}

Preparation prepare_cat(const Operators& operators, const std::vector<at::Tensor>& tensors,
                        int64_t dim, const at::Tensor& target) {
  dim = at::maybe_wrap_dim(dim, target.dim());
  std::vector<Moves> moves;
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const int64_t size = tensor.size(dim);
    const at::Tensor place = target.narrow(dim, begin, size);
    auto part = place.sizes() == tensor.sizes() ? copying(tensor, place) : std::nullopt;
    if (!part) return {nullptr, kConverts};
    moves.push_back(*std::move(part));
    begin += size;
  }
  return {std::make_unique<MovingCall>(operators, std::move(moves))};
}

Preparation prepare_indexed(const Operators& operators, const at::Tensor& chosen, int64_t dim,
                            const at::Tensor& index, const at::Tensor& other, bool from_chosen) {
  // torch shares large ones among threads.
  if (chosen.dim() == 0 || chosen.dim() != other.dim() || !index.is_contiguous() ||
      chosen.numel() == 0 || other.numel() == 0 || other.numel() > at::internal::GRAIN_SIZE ||
      chosen.dtype() != other.dtype()) {
    return {nullptr, "its shapes have no prepared form"};
  }
  dim = at::maybe_wrap_dim(dim, chosen.dim());
  const at::Tensor one = chosen.select(dim, 0), another = other.select(dim, 0);
  if (one.sizes() != another.sizes() || index.numel() != other.size(dim)) {
    return {nullptr, kNotPrepared};
  }
  auto slice = from_chosen ? copying(one, another) : copying(another, one);
  if (!slice) return {nullptr, kConverts};
  const auto bytes = static_cast<int64_t>(chosen.itemsize());
  return {std::make_unique<IndexedCall>(
      operators, *std::move(slice), index, chosen.size(dim),
      IndexedCall::Step{chosen.stride(dim) * bytes, other.stride(dim) * bytes}, from_chosen)};
}

}  // namespace bringup::torch_ext::graphs
