// For tensor work that is no part of what is captured.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "torch/common/allocation.h"
#include "torch/graphs/recorder_key.h"

namespace bringup::torch_ext::graphs {

// The recorder's and those of dispatch modes, which would see copies of tensors as calls.
inline constexpr c10::DispatchKeySet kUnseenKeys({kRecorderKey, c10::DispatchKey::Python,
                                                  c10::DispatchKey::PythonTLSSnapshot});

// Within its scope nothing is recorded, nothing comes from the graph's pool, and autograd is off.
struct OutsideCapture {
  c10::impl::ExcludeDispatchKeyGuard not_recorded{kUnseenKeys};
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  InterceptorScope no_interceptor{nullptr};
};

}  // namespace bringup::torch_ext::graphs
