// Tensors inside dispatcher values: visiting them, replacing them, and whether their memory meets.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <ranges>
#include <string>
#include <utility>

namespace bringup::torch_ext {

// Whether tensors may be in it: of lists, and of the lists of lists that collectives take.
inline bool lists_tensors(const c10::IValue& value) {
  return value.isTensorList() || value.isOptionalTensorList() ||
         (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::ListType);
}

// Calls fn(const at::Tensor&) for every defined tensor in `value`.
template <class Fn>
void for_each_tensor(const c10::IValue& value, Fn&& fn) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) fn(value.toTensor());
  } else if (lists_tensors(value)) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, fn);
  }
}

template <std::ranges::range Values, class Fn>
void for_each_tensor(const Values& values, Fn&& fn) {
  for (const c10::IValue& value : values) for_each_tensor(value, fn);
}

// Whether one of the tensors in a value, or in a range of values, is such a one.
template <class Values, class Is>
bool any_tensor(const Values& values, Is&& is) {
  bool any = false;
  for_each_tensor(values, [&](const at::Tensor& tensor) { any = any || is(tensor); });
  return any;
}

// A copy of `value` in which fn(const at::Tensor&) replaced every defined tensor.
template <class Fn>
c10::IValue map_tensors(const c10::IValue& value, Fn&& fn) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? c10::IValue(fn(value.toTensor())) : value;
  }
  if (!lists_tensors(value)) return value;
  c10::impl::GenericList copy = c10::IValue(value).toList().copy();
  for (size_t i = 0; i < copy.size(); ++i) copy.set(i, map_tensors(copy.get(i), fn));
  return c10::IValue(std::move(copy));
}

// "torch.float32".
std::string dtype_text(at::ScalarType dtype);

// Whether an element of one may lie in the bytes from the other's first to its last element. The
// bases are where their storages begin.
bool overlap(const at::Tensor& left, uintptr_t left_base, const at::Tensor& right,
             uintptr_t right_base);
// The same of two tensors as they are: none of what has another storage.
bool overlap(const at::Tensor& left, const at::Tensor& right);

}  // namespace bringup::torch_ext
