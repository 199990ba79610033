// Pointwise kernels: torch's TensorIterator finds the common shape, makes the result, refuses
// memory that overlaps, and gives the order in which all operands are walked through. Where these
// are contiguous and of one shape there is nothing to find.
#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>

#include <algorithm>

#include "torch/common/values.h"
#include "torch/devices/allocator.h"
#include "torch/devices/state.h"
#include "torch/operators/operator_kernel.h"
#include "torch/ops/frame.h"

namespace bringup::torch_ext {
namespace {

// Operand number `operand` as the iterator walks through it, its innermost dimension last, with
// dimensions of size 1 before the others up to `rank`.
void add_operand(runtime::LaunchBlock& block, const at::TensorIterator& iterator, int operand,
                 size_t rank) {
  const auto own = static_cast<size_t>(iterator.ndim());
  c10::SmallVector<int64_t, 6> sizes;
  c10::SmallVector<int64_t, 6> strides;
  for (size_t dim = own; dim < rank; ++dim) {
    sizes.push_back(1);
    strides.push_back(0);
  }
  const auto width = static_cast<int64_t>(iterator.element_size(operand));
  for (int dim = iterator.ndim() - 1; dim >= 0; --dim) {
    sizes.push_back(iterator.shape()[dim]);
    strides.push_back(iterator.strides(operand)[dim] / width);
  }
  block.add_tensor(describe(iterator.tensor(operand), sizes, strides));
}

bool is_operand(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments, size_t i) {
  return kernel.arguments[i].is_operand() && arguments[i].isTensor() &&
         arguments[i].toTensor().defined() && !is_host_number(arguments[i]);
}

void add_number(const OperatorKernel& kernel, const c10::IValue& value, ArgumentKind kind,
                OperatorLaunch& launch) {
  if (kind == ArgumentKind::kNumber && value.isScalar()) {
    const at::ScalarType computed = launch.variant->computed;
    check_in_range(value.toScalar(), computed);
    if (kernel.takes_views) {
      return add_scalar_as(launch.block, value.toScalar(), at::isFloatingType(computed));
    }
  }
  add_value(launch.block, value, kind);
}

int64_t grid_of(int64_t elements) {
  return std::clamp<int64_t>(elements / kBlockElements, 1, kMostBlocks);
}

// Whether every operand has its elements one behind another.
bool is_dense(const at::TensorIterator& iterator) {
  if (iterator.ndim() > 1) return false;
  for (int i = 0; iterator.ndim() == 1 && i < iterator.ntensors(); ++i) {
    if (iterator.strides(i)[0] != static_cast<int64_t>(iterator.element_size(i))) return false;
  }
  return true;
}

// The operands' first where all are contiguous, of one shape, on the call's device; else null.
const at::Tensor* first_of_alike(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                                 c10::DeviceIndex device) {
  const at::Tensor* first = nullptr;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!is_operand(kernel, arguments, i)) continue;
    const at::Tensor& tensor = arguments[i].toTensor();
    if (!tensor.is_privateuseone() || tensor.device().index() != device ||
        !tensor.is_contiguous()) {
      return nullptr;
    }
    if (first == nullptr) {
      first = &tensor;
    } else if (tensor.sizes() != first->sizes()) {
      return nullptr;
    }
  }
  return first;
}

// A fresh result for operands that are all alike: what the iterator's own fast setup finds, with
// all dimensions merged, without the iterator.
void prepare_alike(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                   const at::Tensor& first, OperatorLaunch& launch) {
  const at::ScalarType dtype = launch.variant->results.front();
  check_dtype(dtype, launch.device);
  const at::Tensor& result = launch.results.emplace_back(at::detail::empty_generic(
      first.sizes(), &device_allocator(), kDriverKeys, dtype, std::nullopt));
  const int64_t elements = first.numel();
  launch.empty = elements == 0;
  if (launch.empty) return;
  constexpr int64_t kUnit = 1;
  const size_t rank = first.dim() == 0 ? 0 : 1;
  const c10::IntArrayRef sizes(&elements, rank);
  const c10::IntArrayRef strides(&kUnit, rank);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_operand(kernel, arguments, i)) {
      launch.block.add_tensor(describe(arguments[i].toTensor(), sizes, strides));
    } else {
      add_number(kernel, arguments[i], kernel.arguments[i].kind, launch);
    }
  }
  launch.block.add_tensor(describe(result, sizes, strides));
  launch.grid = grid_of(elements);
  launch.dense = launch.variant->dense != nullptr;
}

// The arguments, those operands copied that `result` overlaps now; empty where none does.
std::vector<c10::IValue> apart_from(const at::Tensor& result, const OperatorKernel& kernel,
                                    c10::ArrayRef<c10::IValue> arguments, OperatorLaunch& launch) {
  std::vector<c10::IValue> apart = arguments.vec();
  bool copied = false;
  for (size_t i = 0; i < apart.size(); ++i) {
    if (!is_operand(kernel, arguments, i) || !overlap(result, arguments[i].toTensor())) continue;
    apart[i] = launch.held.emplace_back(arguments[i].toTensor().clone());
    copied = true;
  }
  return copied ? apart : std::vector<c10::IValue>();
}

}  // namespace

bool prepare_pointwise(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                       c10::ArrayRef<at::Tensor> results, OperatorLaunch& launch) {
  if (results.empty() && kernel.out < 0 && !launch.fixed) {
    const at::Tensor* first = first_of_alike(kernel, arguments, launch.device);
    if (first != nullptr) {
      prepare_alike(kernel, arguments, *first, launch);
      return true;
    }
  }
  at::Tensor result = !results.empty()  ? results.front()
                      : kernel.out >= 0 ? arguments[static_cast<size_t>(kernel.out)].toTensor()
                                        : at::Tensor();
  const int64_t former = result.defined() ? result.numel() : -1;
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false)
      .declare_static_dtype_and_device(launch.variant->results.front(),
                                       c10::Device(kDriverDevice, launch.device))
      .resize_outputs(!launch.fixed)
      .add_output(result);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_operand(kernel, arguments, i)) config.add_const_input(arguments[i].toTensor());
  }
  const at::TensorIterator iterator = config.build();
  if (former >= 0 && former != iterator.numel()) {
    // The iterator refuses memory that overlaps before it makes the result larger.
    auto apart = apart_from(result, kernel, arguments, launch);
    if (!apart.empty()) return prepare_pointwise(kernel, apart, results, launch);
  }
  if (!result.defined()) result = iterator.output();
  launch.results.push_back(std::move(result));
  launch.empty = iterator.numel() == 0;
  if (launch.empty) return true;
  const bool plain = launch.variant->kernel->values != nullptr;
  launch.dense = launch.variant->dense != nullptr && is_dense(iterator);
  const size_t rank = plain && !launch.dense ? kPlainRank : 0;
  if (rank != 0 && static_cast<size_t>(iterator.ndim()) > rank) return false;
  int operand = 1;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (kernel.arguments[i].is_out) continue;
    if (is_operand(kernel, arguments, i)) {
      add_operand(launch.block, iterator, operand++, rank);
    } else {
      add_number(kernel, arguments[i], kernel.arguments[i].kind, launch);
    }
  }
  add_operand(launch.block, iterator, 0, rank);
  launch.grid = grid_of(iterator.numel());
  return true;
}

}  // namespace bringup::torch_ext
