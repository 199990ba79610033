#include "runtime/launch_block.h"

#include <deque>
#include <stdexcept>
#include <string>

namespace bringup::runtime {
namespace {

// A described tensor with its own sizes and strides.
struct OwnedTensor {
  std::vector<int64_t> extents;  // sizes, then strides
  DLTensor view{};

  explicit OwnedTensor(const TensorDesc& tensor) {
    if (tensor.sizes.size() != tensor.strides.size()) {
      throw std::invalid_argument("a tensor needs as many strides as sizes");
    }
    const size_t rank = tensor.sizes.size();
    extents.reserve(2 * rank + 1);
    extents.insert(extents.end(), tensor.sizes.begin(), tensor.sizes.end());
    extents.insert(extents.end(), tensor.strides.begin(), tensor.strides.end());
    extents.push_back(0);  // so that data() is never null, as the ABI promises
    view = DLTensor{tensor.data,    tensor.device,         static_cast<int32_t>(rank), tensor.dtype,
                    extents.data(), extents.data() + rank, 0};
  }
  OwnedTensor(const OwnedTensor&) = delete;
  OwnedTensor& operator=(const OwnedTensor&) = delete;

  TensorDesc desc() const {
    const auto rank = static_cast<size_t>(view.ndim);
    return {view.data, view.device, view.dtype, {view.shape, rank}, {view.strides, rank}};
  }
};

struct Argument {
  ArgKind kind = ArgKind::kNone;
  int64_t integer = 0;
  double real = 0;
  bringup_list list{nullptr, 0};
  std::string text;
  std::vector<int64_t> integers;
  std::vector<double> reals;
  std::vector<DLTensor*> tensor_pointers;
  std::deque<OwnedTensor> tensors;  // one for kTensor, any number for kTensorList

  void* pointer() {
    switch (kind) {
      case ArgKind::kNone: return nullptr;
      case ArgKind::kTensor: return &tensors.front().view;
      case ArgKind::kInt: return &integer;
      case ArgKind::kFloat: return &real;
      case ArgKind::kString: return text.data();
      case ArgKind::kIntList:
      case ArgKind::kFloatList:
      case ArgKind::kTensorList: return &list;
    }
    return nullptr;
  }
};

}  // namespace

struct LaunchBlock::State {
  std::deque<Argument> arguments;  // a deque: appending never moves an argument
  std::vector<void*> pointers;

  Argument& append(ArgKind kind) {
    Argument& argument = arguments.emplace_back();
    argument.kind = kind;
    return argument;
  }
  void publish(Argument& argument) { pointers.push_back(argument.pointer()); }

  Argument& at(int32_t index, ArgKind kind) {
    if (index < 0 || static_cast<size_t>(index) >= arguments.size()) {
      throw std::invalid_argument("no argument " + std::to_string(index) + " in a launch block of " +
                                  std::to_string(arguments.size()));
    }
    Argument& argument = arguments[static_cast<size_t>(index)];
    if (argument.kind != kind) {
      throw std::invalid_argument("argument " + std::to_string(index) + " is of another kind");
    }
    return argument;
  }
};

LaunchBlock::LaunchBlock() : state_(std::make_unique<State>()) {}
LaunchBlock::~LaunchBlock() = default;
LaunchBlock::LaunchBlock(LaunchBlock&&) noexcept = default;
LaunchBlock& LaunchBlock::operator=(LaunchBlock&&) noexcept = default;

void LaunchBlock::add_none() { state_->publish(state_->append(ArgKind::kNone)); }

void LaunchBlock::add_tensor(const TensorDesc& tensor) {
  Argument& argument = state_->append(ArgKind::kTensor);
  argument.tensors.emplace_back(tensor);
  state_->publish(argument);
}

void LaunchBlock::add_int(int64_t value) {
  Argument& argument = state_->append(ArgKind::kInt);
  argument.integer = value;
  state_->publish(argument);
}

void LaunchBlock::add_float(double value) {
  Argument& argument = state_->append(ArgKind::kFloat);
  argument.real = value;
  state_->publish(argument);
}

void LaunchBlock::add_string(std::string_view value) {
  Argument& argument = state_->append(ArgKind::kString);
  argument.text.assign(value);
  state_->publish(argument);
}

void LaunchBlock::add_int_list(std::span<const int64_t> values) {
  Argument& argument = state_->append(ArgKind::kIntList);
  argument.integers.assign(values.begin(), values.end());
  argument.list = {argument.integers.data(), static_cast<int64_t>(values.size())};
  state_->publish(argument);
}

void LaunchBlock::add_float_list(std::span<const double> values) {
  Argument& argument = state_->append(ArgKind::kFloatList);
  argument.reals.assign(values.begin(), values.end());
  argument.list = {argument.reals.data(), static_cast<int64_t>(values.size())};
  state_->publish(argument);
}

void LaunchBlock::add_tensor_list(std::span<const TensorDesc> tensors) {
  Argument& argument = state_->append(ArgKind::kTensorList);
  for (const TensorDesc& tensor : tensors) {
    argument.tensor_pointers.push_back(&argument.tensors.emplace_back(tensor).view);
  }
  argument.list = {argument.tensor_pointers.data(), static_cast<int64_t>(tensors.size())};
  state_->publish(argument);
}

void** LaunchBlock::args() noexcept { return state_->pointers.data(); }

int32_t LaunchBlock::size() const noexcept { return static_cast<int32_t>(state_->pointers.size()); }

ArgKind LaunchBlock::kind(int32_t index) const {
  return state_->arguments.at(static_cast<size_t>(index)).kind;
}

void LaunchBlock::set_int(int32_t index, int64_t value) {
  state_->at(index, ArgKind::kInt).integer = value;
}

void LaunchBlock::set_float(int32_t index, double value) {
  state_->at(index, ArgKind::kFloat).real = value;
}

void LaunchBlock::set_int_list(int32_t index, std::span<const int64_t> values) {
  Argument& argument = state_->at(index, ArgKind::kIntList);
  argument.integers.assign(values.begin(), values.end());
  argument.list = {argument.integers.data(), static_cast<int64_t>(values.size())};
}

void LaunchBlock::set_float_list(int32_t index, std::span<const double> values) {
  Argument& argument = state_->at(index, ArgKind::kFloatList);
  argument.reals.assign(values.begin(), values.end());
  argument.list = {argument.reals.data(), static_cast<int64_t>(values.size())};
}

LaunchBlock LaunchBlock::clone() const {
  LaunchBlock copy;
  for (const Argument& argument : state_->arguments) {
    switch (argument.kind) {
      case ArgKind::kNone: copy.add_none(); break;
      case ArgKind::kTensor: copy.add_tensor(argument.tensors.front().desc()); break;
      case ArgKind::kInt: copy.add_int(argument.integer); break;
      case ArgKind::kFloat: copy.add_float(argument.real); break;
      case ArgKind::kString: copy.add_string(argument.text); break;
      case ArgKind::kIntList: copy.add_int_list(argument.integers); break;
      case ArgKind::kFloatList: copy.add_float_list(argument.reals); break;
      case ArgKind::kTensorList: {
        std::vector<TensorDesc> tensors;
        for (const OwnedTensor& tensor : argument.tensors) tensors.push_back(tensor.desc());
        copy.add_tensor_list(tensors);
        break;
      }
    }
  }
  return copy;
}

}  // namespace bringup::runtime
