// Reductions: the kernel sees its input with the kept dimensions first and the reduced ones behind
// them, and its results with the kept ones alone.
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bitset>

#include "torch/common/values.h"
#include "torch/devices/state.h"
#include "torch/operators/operator_kernel.h"
#include "torch/ops/frame.h"

namespace bringup::torch_ext {
namespace {

using Mask = std::bitset<at::dim_bitset_size>;
using Numbers = c10::SmallVector<int64_t, 6>;

Mask reduced_dims(const c10::IValue& dim, int64_t rank) {
  if (dim.isNone()) return Mask().set();
  if (dim.isInt()) return at::dim_list_to_bitset({dim.toInt()}, static_cast<size_t>(rank));
  const std::vector<int64_t> dims = dim.toIntVector();
  if (dims.empty()) return Mask().set();
  return at::dim_list_to_bitset(dims, static_cast<size_t>(rank));
}

// Dimensions of the input that are walked through alike; neighbours that lie behind one another in
// every tensor are one.
struct Group {
  Numbers sizes;
  Numbers input;
  c10::SmallVector<Numbers, 2> results;

  void add(int64_t size, int64_t stride, const Numbers& of_results) {
    if (size == 1) return;
    if (!sizes.empty() && input.back() == size * stride &&
        std::equal(of_results.begin(), of_results.end(), results.begin(),
                   [&](int64_t one, const Numbers& all) { return all.back() == size * one; })) {
      sizes.back() *= size;
      input.back() = stride;
      for (size_t r = 0; r < results.size(); ++r) results[r].back() = of_results[r];
      return;
    }
    sizes.push_back(size);
    input.push_back(stride);
    results.resize(of_results.size());
    for (size_t r = 0; r < of_results.size(); ++r) results[r].push_back(of_results[r]);
  }
};

void check_same_device(const OperatorKernel& kernel, const at::Tensor& tensor,
                       c10::DeviceIndex device) {
  TORCH_CHECK(tensor.is_privateuseone() && tensor.device().index() == device,
              "Expected all tensors to be on the same device, but ", kernel.name, " got ",
              tensor.device(), " and ", c10::Device(kDriverDevice, device));
}

Numbers result_sizes(const at::Tensor& input, const Mask& reduced, bool keeps) {
  Numbers sizes;
  for (int64_t d = 0; d < input.dim(); ++d) {
    if (!reduced[static_cast<size_t>(d)]) {
      sizes.push_back(input.size(d));
    } else if (keeps) {
      sizes.push_back(1);
    }
  }
  return sizes;
}

// The results that are written or given, and fresh ones for the others. False where one may lie on
// top of the input.
bool take_results(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                  c10::ArrayRef<at::Tensor> given, c10::IntArrayRef sizes, OperatorLaunch& launch) {
  const at::Tensor& input = arguments.front().toTensor();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!kernel.arguments[i].is_out) continue;
    const at::Tensor& out = arguments[i].toTensor();
    check_same_device(kernel, out, launch.device);
    if (!launch.fixed) at::native::resize_output(out, sizes);
    launch.results.push_back(out);
  }
  for (size_t next = launch.results.size(); next < launch.variant->results.size(); ++next) {
    launch.results.push_back(
        next < given.size()
            ? given[next]
            : at::empty(sizes, input.options().dtype(launch.variant->results[next])));
  }
  for (const at::Tensor& result : launch.results) {
    if (launch.fixed) check_fits(kernel, result, sizes);
    at::assert_no_internal_overlap(result);
    at::assert_no_overlap(result, input);
    if (overlap(result, input)) return false;
  }
  return true;
}

// The kept dimensions of the input and its results, and the reduced ones.
std::pair<Group, Group> groups_of(const at::Tensor& input, const Mask& reduced, bool keeps,
                                  c10::ArrayRef<at::Tensor> results) {
  std::pair<Group, Group> groups;
  int64_t place = 0;
  for (int64_t d = 0; d < input.dim(); ++d) {
    const bool out_of = reduced[static_cast<size_t>(d)];
    Numbers strides;
    if (!out_of) {
      for (const at::Tensor& result : results) strides.push_back(result.stride(place));
    }
    if (!out_of || keeps) ++place;
    (out_of ? groups.second : groups.first).add(input.size(d), input.stride(d), strides);
  }
  return groups;
}

// Whether one result is made of elements that lie one behind another.
bool is_dense(const Group& kept, const Group& inner) {
  return kept.sizes.empty() && inner.sizes.size() <= 1 &&
         (inner.sizes.empty() || inner.input[0] == 1);
}

// With as many dimensions as plain values have, the first ones of size 1. False for too many.
bool pad(Group& group, size_t results) {
  if (group.sizes.size() > kPlainKept) return false;
  const size_t missing = kPlainKept - group.sizes.size();
  group.sizes.insert(group.sizes.begin(), missing, 1);
  group.input.insert(group.input.begin(), missing, 0);
  group.results.resize(results);
  for (Numbers& strides : group.results) strides.insert(strides.begin(), missing, 0);
  return true;
}

void pack(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments, const Group& kept,
          const Group& inner, OperatorLaunch& launch) {
  Numbers sizes(kept.sizes);
  sizes.append(inner.sizes.begin(), inner.sizes.end());
  Numbers strides(kept.input);
  strides.append(inner.input.begin(), inner.input.end());
  launch.block.add_tensor(describe(arguments.front().toTensor(), sizes, strides));
  for (size_t i = 1; i < arguments.size(); ++i) {
    const Argument& argument = kernel.arguments[i];
    const auto index = static_cast<int32_t>(i);
    const bool is_given = !argument.is_out && argument.kind != ArgumentKind::kDtype &&
                          index != kernel.dim && index != kernel.keepdim;
    if (is_given) add_value(launch.block, arguments[i], argument.kind);
  }
  launch.block.add_int(static_cast<int64_t>(kept.sizes.size()));
  for (size_t r = 0; r < launch.results.size(); ++r) {
    const Numbers none;
    launch.block.add_tensor(
        describe(launch.results[r], kept.sizes, r < kept.results.size() ? kept.results[r] : none));
  }
}

}  // namespace

bool prepare_reduction(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                       c10::ArrayRef<at::Tensor> given, OperatorLaunch& launch) {
  const at::Tensor& input = arguments.front().toTensor();
  check_same_device(kernel, input, launch.device);
  const auto given_for = [&](int32_t argument) {
    return argument < 0 ? c10::IValue() : arguments[static_cast<size_t>(argument)];
  };
  const Mask reduced = reduced_dims(given_for(kernel.dim), input.dim());
  const bool keeps = kernel.keepdim >= 0 && given_for(kernel.keepdim).toBool();
  const Numbers sizes = result_sizes(input, reduced, keeps);
  if (!take_results(kernel, arguments, given, sizes, launch)) return false;
  const int64_t results = c10::multiply_integers(sizes);
  launch.empty = results == 0;
  if (launch.empty) return true;
  auto [kept, inner] = groups_of(input, reduced, keeps, launch.results);
  const bool plain = launch.variant->kernel->values != nullptr;
  launch.dense = launch.variant->dense != nullptr && is_dense(kept, inner);
  if (plain && !(pad(kept, launch.results.size()) && pad(inner, 0))) return false;
  pack(kernel, arguments, kept, inner, launch);
  launch.grid = {
      std::clamp<int64_t>(std::min(results, input.numel() / kBlockElements), 1, kMostBlocks),
      results};
  return true;
}

}  // namespace bringup::torch_ext
