// Lists of tensors among a call's arguments.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "torch/common/values.h"

namespace bringup::torch_ext::graphs {

// Gives the arguments lists of their own. Some kernels put other tensors into the list that they
// are given, which every copy of its IValue shares: torch's for lazy conjugation and negation, and
// _unsafe_masked_index.
inline void take_own_lists(std::vector<c10::IValue>& arguments) {
  for (c10::IValue& value : arguments) {
    if (!lists_tensors(value)) continue;
    value = map_tensors(value, [](const at::Tensor& tensor) { return tensor; });
  }
}

}  // namespace bringup::torch_ext::graphs
