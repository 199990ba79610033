// The five operators of SyncBatchNorm, which torch has for GPUs only, as operators of the device.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/var_mean.h>

#include <tuple>
#include <vector>

#include "torch/devices/registration.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool has_value(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

// float for the half types.
at::ScalarType sum_type(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// All but the channels.
std::vector<int64_t> reduced(const Tensor& input) {
  std::vector<int64_t> dims{0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

Tensor by_channel(const Tensor& values, const Tensor& input) {
  std::vector<int64_t> sizes(static_cast<size_t>(input.dim()), 1);
  sizes[1] = values.numel();
  return values.view(sizes);
}

std::tuple<Tensor, Tensor> stats(const Tensor& input, double eps) {
  const auto [var, mean] =
      at::var_mean(input.to(sum_type(input)), reduced(input), /*correction=*/at::Scalar(0));
  return {mean, (var + eps).rsqrt()};
}

std::tuple<Tensor, Tensor> gather_stats_with_counts(const Tensor& input, const Tensor& means,
                                                    const Tensor& invstds,
                                                    const OptionalTensor& running_mean,
                                                    const OptionalTensor& running_var,
                                                    double momentum, double eps,
                                                    const Tensor& counts) {
  const Tensor weights = counts.to(sum_type(input)).view({-1, 1});
  const Tensor total = weights.sum();
  const Tensor mean = (means * weights).sum(0) / total;
  const Tensor var = invstds.pow(-2) - eps;
  const Tensor squares = ((var + (means - mean).square()) * weights).sum(0);
  if (has_value(running_mean)) running_mean->mul_(1 - momentum).add_(mean, momentum);
  if (has_value(running_var)) {
    running_var->mul_(1 - momentum).add_(squares / (total - 1), momentum);
  }
  return {mean, (squares / total + eps).rsqrt()};
}

std::tuple<Tensor, Tensor> gather_stats(const Tensor& input, const Tensor& means,
                                        const Tensor& invstds, const OptionalTensor& running_mean,
                                        const OptionalTensor& running_var, double momentum,
                                        double eps, int64_t count) {
  const Tensor counts = means.new_full({means.size(0)}, count);
  return gather_stats_with_counts(input, means, invstds, running_mean, running_var, momentum, eps,
                                  counts);
}

Tensor normalized(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                  const Tensor& mean, const Tensor& invstd, double /*eps*/) {
  Tensor result = (input.to(sum_type(input)) - by_channel(mean, input)) * by_channel(invstd, input);
  if (has_value(weight)) result = result * by_channel(*weight, input);
  if (has_value(bias)) result = result + by_channel(*bias, input);
  return result.to(input.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_reduce(const Tensor& grad, const Tensor& input,
                                                           const Tensor& mean, const Tensor& invstd,
                                                           const OptionalTensor& weight,
                                                           bool input_g, bool weight_g,
                                                           bool bias_g) {
  const Tensor wide = grad.to(sum_type(input));
  const Tensor centred = input.to(sum_type(input)) - by_channel(mean, input);
  const Tensor sum = wide.sum(reduced(input));
  const Tensor sum_centred = (wide * centred).sum(reduced(input));
  const auto of_weight = [&](const Tensor& values) {
    return has_value(weight) ? values.to(weight->scalar_type()) : values;
  };
  return {input_g ? sum : Tensor(), input_g ? sum_centred : Tensor(),
          weight_g ? of_weight(sum_centred * invstd) : Tensor(),
          bias_g ? of_weight(sum) : Tensor()};
}

Tensor backward_input(const Tensor& grad, const Tensor& input, const Tensor& mean,
                      const Tensor& invstd, const OptionalTensor& weight, const Tensor& sum,
                      const Tensor& sum_centred, const Tensor& counts) {
  const Tensor total = counts.sum().to(sum_type(input));
  const Tensor centred = input.to(sum_type(input)) - by_channel(mean, input);
  const Tensor slope = by_channel(invstd.square() * sum_centred / total, input);
  Tensor scale = by_channel(invstd, input);
  if (has_value(weight)) scale = scale * by_channel(*weight, input);
  const Tensor shifted = grad.to(sum_type(input)) - by_channel(sum / total, input);
  return ((shifted - centred * slope) * scale).to(input.scalar_type());
}

}  // namespace

void register_synchronized_norm() {
  static auto* library = new KitLibrary("aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("batch_norm_stats", TORCH_FN(stats));
  library->impl("batch_norm_gather_stats", TORCH_FN(gather_stats));
  library->impl("batch_norm_gather_stats_with_counts", TORCH_FN(gather_stats_with_counts));
  library->impl("batch_norm_elemt", TORCH_FN(normalized));
  library->impl("batch_norm_backward_reduce", TORCH_FN(backward_reduce));
  library->impl("batch_norm_backward_elemt", TORCH_FN(backward_input));
}

}  // namespace bringup::torch_ext
