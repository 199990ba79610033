// The dispatch key that the recorder listens on. It lies above autograd and autocast; torch itself
// gives it no kernel.
#pragma once

#include <c10/core/DispatchKey.h>

namespace bringup::torch_ext::graphs {

inline constexpr c10::DispatchKey kRecorderKey = c10::DispatchKey::DeferredInit;

}  // namespace bringup::torch_ext::graphs
