// Which implementation torch.nn.functional.scaled_dot_product_attention takes on the device: a
// vendor's own where there is one, else what the CPU would take, which the fallback runs. Without a
// choice torch takes the decomposed one, and sdpa_kernel() says nothing.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice_cpu_dispatch.h>

#include "torch/common/torch_private.h"
#include "torch/devices/state.h"
#include "torch/operators/operator_kernel.h"

namespace bringup::torch_ext {
namespace {

bool has_vendor_kernel() {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      "aten::_scaled_dot_product_fused_attention_overrideable", "");
  return op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
}

int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
               std::optional<double> scale, bool enable_gqa) {
  if (has_vendor_kernel() && at::globalContext().userEnabledOverrideableSDP()) {
    return static_cast<int64_t>(sdp::SDPBackend::overrideable);
  }
  // Made of products and a softmax, where those run on the device and the whole does not.
  const bool whole = has_native_form("aten::_scaled_dot_product_flash_attention_for_cpu");
  if (!whole && has_native_form("aten::bmm") && has_native_form("aten::_softmax") &&
      at::globalContext().userEnabledMathSDP()) {
    return static_cast<int64_t>(sdp::SDPBackend::math);
  }
  return at::cpu::_fused_sdp_choice(query, key, value, mask, dropout, is_causal, scale, enable_gqa);
}

}  // namespace

void register_attention_choice() {
  if (has_attention_choice()) return;  // a vendor's library came first
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose);
}

}  // namespace bringup::torch_ext
