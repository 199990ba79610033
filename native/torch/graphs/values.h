// What tensors and other dispatcher values are: whether two are the same, and what to say of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>

#include "torch/common/values.h"

namespace bringup::torch_ext::graphs {

// Whether Python code decides what operators do with this tensor: a fake tensor, a wrapper.
inline bool is_subclass(const at::Tensor& tensor) {
  return tensor.key_set().has(c10::DispatchKey::Python);
}

// What of `storage` the host can read, or where only the device can, its address there: one address
// for one memory, whether it is seen from the host or from the device.
const void* address_of(const c10::Storage& storage);
// Likewise of a tensor's first element.
const void* address_of(const at::Tensor& tensor);

// Whether two tensors are the same elements in memory, seen in the same way.
bool same_elements(const at::Tensor& left, const at::Tensor& right);

// Whether an element of one may lie in the bytes from the other's first to its last element, in
// whatever storages: one memory may be seen from the host and from the device.
bool shares_bytes(const at::Tensor& left, const at::Tensor& right);

// Whether two lists of tensors have the same elements, as above.
bool same_tensors(const c10::IValue& left, const c10::IValue& right);

// Whether two numbers are one to the bit: -0.0 is not 0.0, and nan is nan.
inline bool same_bits(double left, double right) {
  return std::bit_cast<uint64_t>(left) == std::bit_cast<uint64_t>(right);
}

// What operators that run on torch's kernel for the CPU alone are dispatched by.
inline const c10::DispatchKeySet kCpuKernel(c10::DispatchKey::CPU);

// Whether its elements are conjugated or negated only when they are read.
inline bool is_lazy(const at::Tensor& tensor) { return tensor.is_conj() || tensor.is_neg(); }

// Whether two values of one type are equal, numbers to the bit; tensors are when they are the same
// memory. Their own == is made for anything and asks for everything first.
inline bool same(const c10::IValue& left, const c10::IValue& right) {
  if (left.isInt() && right.isInt()) return left.toInt() == right.toInt();
  if (left.isDouble() && right.isDouble()) return same_bits(left.toDouble(), right.toDouble());
  if (left.isComplexDouble() && right.isComplexDouble()) {
    const auto a = left.toComplexDouble();
    const auto b = right.toComplexDouble();
    return same_bits(a.real(), b.real()) && same_bits(a.imag(), b.imag());
  }
  if (left.isDoubleList() && right.isDoubleList()) {
    return std::ranges::equal(left.toDoubleVector(), right.toDoubleVector(), same_bits);
  }
  if (left.isTensor() && right.isTensor()) return same_elements(left.toTensor(), right.toTensor());
  if (left.isTensorList() && right.isTensorList()) return same_tensors(left, right);
  return left.tagKind() == right.tagKind() && left == right;
}

// "float32[2, 3]".
std::string describe_shape(const at::Tensor& tensor);

// The same with the device, where it is not cpu.
std::string describe(const at::Tensor& tensor);

// The first thing in which the layout of `given` differs from that of `wanted`, in words; empty
// when it has the same dtype, device, shape, strides and lazy bits.
std::string layout_difference(const at::Tensor& wanted, const at::Tensor& given);

// The layout of `tensor` alone, over no memory: for layout_difference.
at::Tensor layout_of(const at::Tensor& tensor);

// A second tensor object over `storage` with the sizes, strides and flags of `tensor`. No autograd
// history.
at::Tensor shallow_copy(const at::Tensor& tensor);
at::Tensor shallow_copy(const at::Tensor& tensor, c10::Storage storage);

// The whole storage as a one-dimensional uint8 tensor.
at::Tensor bytes_of(const c10::Storage& storage);

}  // namespace bringup::torch_ext::graphs
