// Pointwise kernels: torch's TensorIterator finds the common shape, makes the result, refuses
// memory that overlaps, and gives the order in which all operands are walked through.
#include <ATen/TensorIterator.h>

#include <algorithm>

#include "torch/devices/state.h"
#include "torch/operators/operator_kernel.h"
#include "torch/ops/frame.h"

namespace bringup::torch_ext {
namespace {

// Operand number `operand` as the iterator walks through it, its innermost dimension last.
void add_operand(runtime::LaunchBlock& block, const at::TensorIterator& iterator, int operand) {
  c10::SmallVector<int64_t, 6> sizes;
  c10::SmallVector<int64_t, 6> strides;
  const auto width = static_cast<int64_t>(iterator.element_size(operand));
  for (int dim = iterator.ndim() - 1; dim >= 0; --dim) {
    sizes.push_back(iterator.shape()[dim]);
    strides.push_back(iterator.strides(operand)[dim] / width);
  }
  block.add_tensor(describe(iterator.tensor(operand), sizes, strides));
}

}  // namespace

void prepare_pointwise(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                       c10::ArrayRef<at::Tensor> results, OperatorLaunch& launch) {
  at::Tensor result = !results.empty()  ? results.front()
                      : kernel.out >= 0 ? arguments[static_cast<size_t>(kernel.out)].toTensor()
                                        : at::Tensor();
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false)
      .declare_static_dtype_and_device(launch.plan->results.front(),
                                       c10::Device(kDriverDevice, launch.device))
      .resize_outputs(!launch.fixed)
      .add_output(result);
  const auto is_operand = [&](size_t i) {
    return kernel.roles[i] == ArgumentRole::kTensor && arguments[i].isTensor() &&
           arguments[i].toTensor().defined() && !is_host_number(arguments[i]);
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_operand(i)) config.add_const_input(arguments[i].toTensor());
  }
  const at::TensorIterator iterator = config.build();
  if (!result.defined()) result = iterator.output();
  launch.results.push_back(std::move(result));
  launch.empty = iterator.numel() == 0;
  if (launch.empty) return;
  int operand = 1;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (kernel.roles[i] == ArgumentRole::kOut) continue;
    if (is_operand(i)) {
      add_operand(launch.block, iterator, operand++);
    } else {
      add_value(launch.block, arguments[i], kernel.roles[i]);
    }
  }
  add_operand(launch.block, iterator, 0);
  launch.grid = std::clamp<int64_t>(iterator.numel() / kBlockElements, 1, kMostBlocks);
}

}  // namespace bringup::torch_ext
