// A function of one half-precision number that is looked up.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include "torch/graphs/prepared_call.h"

namespace bringup::torch_ext::graphs {

// "aten::gelu" by what torch's own kernel gives for all 65,536 values, where that is faster than
// `kernel`, the prepared call of it.
Preparation prepare_look_up(const Operators& operators, const std::vector<c10::IValue>& args,
                            const std::vector<at::Tensor>& outputs, Preparation kernel);

}  // namespace bringup::torch_ext::graphs
