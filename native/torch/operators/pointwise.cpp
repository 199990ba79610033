// Pointwise kernels: torch's TensorIterator finds the common shape, makes the result, refuses
// memory that overlaps, and gives the order in which all operands are walked through. Where these
// are contiguous and of one shape there is nothing to find.
#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>

#include "torch/common/values.h"
#include "torch/devices/allocator.h"
#include "torch/devices/state.h"
#include "torch/operators/operator_kernel.h"
#include "torch/operators/random_call.h"
#include "torch/ops/frame.h"

namespace bringup::torch_ext {
namespace {

// A tensor as the iterator walks through its operand number `operand`, whose strides it has, the
// innermost dimension last, with dimensions of size 1 before the others up to `rank`.
void add_operand(runtime::LaunchBlock& block, const at::TensorIterator& iterator, int operand,
                 const at::Tensor& tensor, size_t rank) {
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
  block.add_tensor(describe(tensor, sizes, strides));
}

bool is_operand(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments, size_t i) {
  return kernel.arguments[i].is_operand() && arguments[i].isTensor() &&
         arguments[i].toTensor().defined() && !is_host_number(arguments[i]);
}

// Argument number `i`, which is no operand.
void add_number(const OperatorKernel& kernel, const c10::IValue& value, size_t i,
                OperatorLaunch& launch) {
  const ArgumentKind kind = kernel.arguments[i].kind;
  if (static_cast<int32_t>(i) == kernel.generator) return add_random(launch);
  if (kind == ArgumentKind::kNumber && value.isScalar()) {
    const at::ScalarType computed = launch.variant->computed;
    check_in_range(value.toScalar(), computed);
    if (kernel.takes_views) {
      return add_scalar_as(launch.block, value.toScalar(), at::isFloatingType(computed));
    }
  }
  add_value(launch.block, value, kind);
}

Grid grid_of(int64_t elements) {
  return {std::clamp<int64_t>(elements / kBlockElements, 1, kMostBlocks), elements};
}

// Whether every operand of the device has its elements one behind another, or no dimensions: then
// the dense entry has its one element for all (jit.Operand.single).
bool is_dense(const at::TensorIterator& iterator) {
  if (iterator.ndim() > 1) return false;
  for (int i = 0; iterator.ndim() == 1 && i < iterator.ntensors(); ++i) {
    if (iterator.device(i).is_cpu() || iterator.tensor(i).dim() == 0) continue;
    if (iterator.strides(i)[0] != static_cast<int64_t>(iterator.element_size(i))) return false;
  }
  return true;
}

// Whether a number is an operand for torch, whose iterator then lays dimensions of size 1 out as
// their strides say.
bool has_number(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (kernel.arguments[i].is_operand() && is_host_number(arguments[i])) return true;
  }
  return kernel.wraps_number;
}

// Without memory, and made by no operator: a capture would see one.
const at::Tensor& any_number() {
  static const at::Tensor number = [] {
    at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(), nullptr, false),
        c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<float>());
    made.unsafeGetTensorImpl()->set_sizes_contiguous({});
    return made;
  }();
  return number;
}

bool has_usual_strides(const at::Tensor& tensor) {
  int64_t expected = 1;
  for (int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
    if (tensor.stride(dim) != expected) return false;
    expected *= std::max<int64_t>(tensor.size(dim), 1);
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
  const bool as_usual =
      first == nullptr || has_usual_strides(*first) || !has_number(kernel, arguments);
  return as_usual ? first : nullptr;
}

// Fresh results for operands that are all alike: what the iterator's own fast setup finds, with
// all dimensions merged, without the iterator.
void prepare_alike(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                   const at::Tensor& first, OperatorLaunch& launch) {
  for (const at::ScalarType dtype : launch.variant->results) {
    check_dtype(dtype, launch.device);
    launch.results.push_back(at::detail::empty_generic(first.sizes(), &device_allocator(),
                                                       kDriverKeys, dtype, std::nullopt));
  }
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
      add_number(kernel, arguments[i], i, launch);
    }
  }
  if (kernel.draws && kernel.generator < 0) add_random(launch);
  for (const at::Tensor& result : launch.results) {
    launch.block.add_tensor(describe(result, sizes, strides));
  }
  launch.grid = grid_of(elements);
  launch.dense = launch.variant->dense != nullptr;
}

// The arguments, those operands copied that a result overlaps now; empty where none does.
std::vector<c10::IValue> apart_from(c10::ArrayRef<at::Tensor> results, const OperatorKernel& kernel,
                                    c10::ArrayRef<c10::IValue> arguments, OperatorLaunch& launch) {
  std::vector<c10::IValue> apart = arguments.vec();
  bool copied = false;
  for (size_t i = 0; i < apart.size(); ++i) {
    if (!is_operand(kernel, arguments, i)) continue;
    const at::Tensor& operand = arguments[i].toTensor();
    if (std::none_of(results.begin(), results.end(),
                     [&](const at::Tensor& result) { return overlap(result, operand); })) {
      continue;
    }
    apart[i] = launch.held.emplace_back(operand.clone());
    copied = true;
  }
  return copied ? apart : std::vector<c10::IValue>();
}

using Results = c10::SmallVector<at::Tensor, 2>;

// The results that there are: those of a captured call, or those that the call is to write.
Results given_results(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                      c10::ArrayRef<at::Tensor> captured) {
  Results given(captured.begin(), captured.end());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (kernel.arguments[i].mutated) given.push_back(arguments[i].toTensor());
  }
  return given;
}

bool overlap_each_other(const Results& results) {
  for (size_t r = 1; r < results.size(); ++r) {
    for (size_t other = 0; other < r; ++other) {
      if (overlap(results[r], results[other])) return true;
    }
  }
  return false;
}

at::TensorIterator iterator_of(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                               const Results& given, const OperatorLaunch& launch) {
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false)
      .declare_static_dtype_and_device(launch.variant->results.front(),
                                       c10::Device(kDriverDevice, launch.device))
      .resize_outputs(!launch.fixed);
  for (const at::Tensor& result : given) config.add_output(result);
  if (given.empty()) config.add_owned_output(at::Tensor());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_operand(kernel, arguments, i)) config.add_const_input(arguments[i].toTensor());
  }
  if (!launch.fixed && !kernel.in_place && has_number(kernel, arguments)) {
    config.allow_cpu_scalars(true).add_const_input(any_number());  // the last one: not passed
  }
  return config.build();
}

// Those that were not given lie as the first of them, which the iterator has made.
Results with_fresh(Results results, const at::TensorIterator& iterator,
                   const OperatorLaunch& launch) {
  if (results.empty()) results.push_back(iterator.output());
  for (size_t r = results.size(); r < launch.variant->results.size(); ++r) {
    const at::Tensor& first = results.front();
    results.push_back(at::empty_strided(first.sizes(), first.strides(),
                                        first.options().dtype(launch.variant->results[r])));
  }
  return results;
}

}  // namespace

bool prepare_pointwise(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                       c10::ArrayRef<at::Tensor> captured, OperatorLaunch& launch) {
  if (captured.empty() && kernel.out < 0 && !launch.fixed) {
    const at::Tensor* first = first_of_alike(kernel, arguments, launch.device);
    if (first != nullptr) {
      prepare_alike(kernel, arguments, *first, launch);
      return true;
    }
  }
  const Results given = given_results(kernel, arguments, captured);
  c10::SmallVector<int64_t, 2> former;
  for (const at::Tensor& result : given) former.push_back(result.numel());
  const at::TensorIterator iterator = iterator_of(kernel, arguments, given, launch);
  if (overlap_each_other(given)) return false;
  if (std::any_of(former.begin(), former.end(),
                  [&](int64_t elements) { return elements != iterator.numel(); })) {
    // The iterator refuses memory that overlaps before it makes the result larger.
    auto apart = apart_from(given, kernel, arguments, launch);
    if (!apart.empty()) return prepare_pointwise(kernel, apart, captured, launch);
  }
  launch.results = with_fresh(given, iterator, launch);
  launch.empty = iterator.numel() == 0;
  if (launch.empty) return true;
  const bool plain = launch.variant->kernel->values != nullptr;
  launch.dense = launch.variant->dense != nullptr && is_dense(iterator);
  const size_t rank = plain && !launch.dense ? kPlainRank : 0;
  if (rank != 0 && static_cast<size_t>(iterator.ndim()) > rank) return false;
  int operand = iterator.noutputs();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (kernel.arguments[i].is_out) continue;
    if (is_operand(kernel, arguments, i)) {
      add_operand(launch.block, iterator, operand, iterator.tensor(operand), rank);
      ++operand;
    } else {
      add_number(kernel, arguments[i], i, launch);
    }
  }
  if (kernel.draws && kernel.generator < 0) add_random(launch);
  for (size_t r = 0; r < launch.results.size(); ++r) {
    const int like = given.empty() ? 0 : static_cast<int>(r);
    add_operand(launch.block, iterator, like, launch.results[r], rank);
  }
  launch.grid = grid_of(iterator.numel());
  return true;
}

}  // namespace bringup::torch_ext
