#include "torch/graphs/copies.h"

#include <ATen/ops/as_strided.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <optional>

namespace bringup::torch_ext::graphs {
namespace {

// All memory from a tensor's first element to its last.
at::Tensor flat(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return tensor.reshape(-1);
  int64_t extent = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) extent += (tensor.size(d) - 1) * tensor.stride(d);
  return tensor.as_strided({extent}, {1});
}

void write_into(at::Tensor target, at::Tensor given) {
  for (int64_t d = 0; d < target.dim(); ++d) {
    if (target.size(d) < 2 || target.stride(d) != 0) continue;
    target = target.narrow(d, 0, 1);
    given = given.narrow(d, 0, 1);
  }
  // A tensor from inference mode may be written there only.
  std::optional<c10::InferenceMode> mode;
  if (target.is_inference()) mode.emplace();
  target.copy_(given);
}

bool is_written(const at::Tensor& given, const std::vector<InputCopy>& inputs) {
  return std::ranges::any_of(
      inputs, [&](const InputCopy& input) { return share_memory(input.target, given); });
}

}  // namespace

bool share_memory(const at::Tensor& left, const at::Tensor& right) {
  if (!left.has_storage() || !right.has_storage() || left.device() != right.device()) return false;
  const auto begin = [](const at::Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.storage().data());
  };
  return begin(left) < begin(right) + right.storage().nbytes() &&
         begin(right) < begin(left) + left.storage().nbytes();
}

at::Tensor own_copy(const at::Tensor& tensor) {
  const c10::AutoGradMode no_gradients(false);
  const at::Tensor plain = tensor.detach();
  if (plain.is_non_overlapping_and_dense()) return plain.clone();
  return flat(plain).clone().as_strided(tensor.sizes(), tensor.strides());
}

void copy_in(std::vector<InputCopy> inputs) {
  const c10::AutoGradMode no_gradients(false);
  for (InputCopy& input : inputs) {
    if (is_written(input.given, inputs)) input.given = own_copy(input.given);
  }
  for (const InputCopy& input : inputs) write_into(input.target, input.given);
}

}  // namespace bringup::torch_ext::graphs
