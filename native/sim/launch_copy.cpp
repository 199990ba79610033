#include "sim/launch_copy.h"

#include <cstring>

#include "sim/kernel_run.h"
#include "sim/status.h"

namespace bringup::sim {

LaunchCopy::LaunchCopy(const bringup_launch& launch)
    : launch_(read_launch(launch)),
      name_(launch.name != nullptr ? launch.name : "?"),
      kinds_(launch.kinds, launch.kinds + launch.nargs) {
  for (int32_t i = 0; i < launch.nargs; ++i) args_.push_back(copy(launch.args[i], kinds_[i]));
  launch_.name = name_.c_str();
  launch_.kinds = kinds_.data();
  launch_.args = args_.data();
  launch_.owner = nullptr;
  launch_.release = nullptr;
}

void* LaunchCopy::copy(const void* argument, uint8_t kind) {
  if (argument == nullptr) return nullptr;
  if (kind == BRINGUP_ARG_NONE) return nullptr;
  if (kind == BRINGUP_ARG_TENSOR) return copy(static_cast<const DLTensor*>(argument));
  if (kind == BRINGUP_ARG_INT || kind == BRINGUP_ARG_FLOAT)
    return copy(static_cast<const int64_t*>(argument), 1);
  if (kind == BRINGUP_ARG_STRING)
    return strings_.emplace_back(static_cast<const char*>(argument)).data();
  if (kind == BRINGUP_ARG_INT_LIST || kind == BRINGUP_ARG_FLOAT_LIST)
    return copy_numbers(static_cast<const bringup_list*>(argument));
  if (kind == BRINGUP_ARG_TENSOR_LIST)
    return copy_tensors(static_cast<const bringup_list*>(argument));
  refuse(BRINGUP_INVALID, "a launch with an argument of kind ", kind);
}

int64_t* LaunchCopy::copy(const int64_t* values, int64_t count) {
  std::vector<int64_t>& copy = numbers_.emplace_back(static_cast<size_t>(count));
  if (count > 0) std::memcpy(copy.data(), values, copy.size() * sizeof(int64_t));
  return copy.data();
}

DLTensor* LaunchCopy::copy(const DLTensor* tensor) {
  if (tensor == nullptr) return nullptr;
  DLTensor& copied = tensors_.emplace_back(*tensor);
  if (tensor->shape != nullptr) copied.shape = copy(tensor->shape, tensor->ndim);
  if (tensor->strides != nullptr) copied.strides = copy(tensor->strides, tensor->ndim);
  return &copied;
}

bringup_list* LaunchCopy::copy_numbers(const bringup_list* list) {
  int64_t* values = copy(static_cast<const int64_t*>(list->data), list->size);
  return &lists_.emplace_back(bringup_list{values, list->size});
}

bringup_list* LaunchCopy::copy_tensors(const bringup_list* list) {
  const auto* sources = static_cast<DLTensor* const*>(list->data);
  std::vector<DLTensor*>& items = items_.emplace_back();
  for (int64_t i = 0; i < list->size; ++i) items.push_back(copy(sources[i]));
  return &lists_.emplace_back(bringup_list{items.data(), list->size});
}

}  // namespace bringup::sim
