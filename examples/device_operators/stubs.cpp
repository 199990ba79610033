// Operators by torch's own second dispatch: a stub has one kernel for each device type, and torch's
// code around it does the rest. What can be registered so is declared in the installed headers:
//   grep -rhw DECLARE_DISPATCH TORCH/include/ATen
#include <ATen/Context.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/abs_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <optional>
#include <tuple>

#include "iterator.h"
#include "kernels.h"
#include "tensors.h"

namespace vendor {
namespace {

// --- abs: torch makes the iterator (shapes, dtypes, out=, in place), the device fills it.

void abs_over(at::TensorIteratorBase& iterator) {
  const c10::ScalarType type = iterator.dtype(1);
  run(iterator, "aten::abs", checked(abs_kernel(dl_dtype(type)), "aten::abs", type));
}

// --- scaled_dot_product_attention: which implementation a call gets, and the device's own.

bool takes(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
           const std::optional<at::Tensor>& mask, double dropout) {
  const bool plain = !mask.has_value() && dropout == 0.0;
  const bool dense = query.dim() == 4 && key.dim() == 4 && value.dim() == 4;
  return plain && dense && query.scalar_type() == c10::kFloat && query.size(1) == key.size(1) &&
         !query.is_nested() && query.numel() != 0 && key.numel() != 0;
}

int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double dropout, bool, std::optional<double>,
               bool) {
  const bool own =
      at::globalContext().userEnabledOverrideableSDP() && takes(query, key, value, mask, dropout);
  return static_cast<int64_t>(own ? sdp::SDPBackend::overrideable : sdp::SDPBackend::math);
}

double scale_of(const at::Tensor& query, std::optional<double> scale) {
  return scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1))));
}

using Forward = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt,
                           at::Tensor, at::Tensor, at::Tensor>;

Forward attention_forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::optional<at::Tensor>& bias, double dropout, bool is_causal,
                          bool, std::optional<double> scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(takes(query, key, value, bias, dropout),
                              "the device's attention takes float tensors of four dimensions, no "
                              "mask and no dropout");
  at::Tensor out =
      at::empty({query.size(0), query.size(1), query.size(2), value.size(3)}, query.options());
  at::Tensor lse = at::empty({query.size(0), query.size(1), query.size(2)}, query.options());
  Launch launch("aten::_scaled_dot_product_fused_attention_overrideable");
  for (const at::Tensor& tensor : {query, key, value}) add_tensor(launch, tensor);
  launch.integer(is_causal).number(scale_of(query, scale));
  add_tensor(launch, out);
  add_tensor(launch, lse);
  start(std::move(launch), &attention, query.device());
  const at::Tensor none = at::empty({0}, query.options());
  return {out, lse, none, none, query.size(2), key.size(2), none, none, none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_gradient(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor&, std::array<bool, 4>, const at::Tensor& out, const at::Tensor& lse,
    const at::Tensor&, const at::Tensor&, c10::SymInt, c10::SymInt, double, bool is_causal,
    const at::Tensor&, const at::Tensor&, std::optional<double> scale) {
  std::tuple gradients(at::empty_like(query), at::empty_like(key), at::empty_like(value),
                       at::Tensor());
  Launch launch("aten::_scaled_dot_product_fused_attention_overrideable_backward");
  for (const at::Tensor& tensor : {grad, query, key, value, out, lse}) add_tensor(launch, tensor);
  launch.integer(is_causal).number(scale_of(query, scale));
  add_tensor(launch, std::get<0>(gradients));
  add_tensor(launch, std::get<1>(gradients));
  add_tensor(launch, std::get<2>(gradients));
  start(std::move(launch), &attention_backward, query.device());
  return gradients;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("abs.out", &at::native::abs_out);  // torch's own function, which calls the stub
  m.impl("_scaled_dot_product_fused_attention_overrideable", &attention_forward);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", &attention_gradient);
}

}  // namespace vendor

namespace at::native {

REGISTER_PRIVATEUSE1_DISPATCH(abs_stub, &vendor::abs_over)
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &vendor::choose)

}  // namespace at::native
