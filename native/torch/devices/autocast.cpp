// Autocast: which operators a device computes in the lower dtype, in float32, or in the widest
// dtype of their arguments. The lists are torch's own (ATen/autocast_mode.h), so they are CUDA's
// and move with torch. Compiled alone: the header brings every operator of ATen.
#include <ATen/autocast_mode.h>

#include "torch/devices/registration.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

// What torch's lists write without a namespace.
using at::IntArrayRef;
using at::Scalar;
using at::ScalarType;
using at::Tensor;

// The gradient of a saturated sigmoid does not fit a lower dtype, and the caller's code has already
// computed the sigmoid: casting its argument up would come too late.
Tensor refuse_binary_cross_entropy(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                                   int64_t) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast on "
      "device '",
      driver_facts().device_name,
      "': the sigmoid before them is computed in a lower dtype. Give the logits to "
      "torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, or "
      "compute the loss in float32 within torch.autocast('",
      driver_facts().device_name, "', enabled=False)");
}

}  // namespace

void register_autocast() {
  constexpr auto key = c10::DispatchKey::AutocastPrivateUse1;
  static auto* everything = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  if (!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key)) {
    everything->fallback(torch::CppFunction::makeFallthrough());
  }

  static auto* aten = new KitLibrary("aten", key, __FILE__, __LINE__);
  KitLibrary& m = *aten;  // torch's macros call it m
#define BRINGUP_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define BRINGUP_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define BRINGUP_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define BRINGUP_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(BRINGUP_LOWER_PRECISION)
  AT_FORALL_FP32(BRINGUP_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(BRINGUP_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(BRINGUP_PROMOTE)
#undef BRINGUP_LOWER_PRECISION
#undef BRINGUP_FP32
#undef BRINGUP_FP32_SET_OPT_DTYPE
#undef BRINGUP_PROMOTE
  m.impl("binary_cross_entropy", &refuse_binary_cross_entropy);
}

}  // namespace bringup::torch_ext
