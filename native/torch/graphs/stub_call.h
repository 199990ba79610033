// Prepared calls of torch's kernels that stand behind a dispatch stub, not behind a structured
// operator.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include "torch/graphs/prepared_call.h"

namespace bringup::torch_ext::graphs {

// `out`, of the dtype of `self`, gets its sums along `dims`; none: along all.
Preparation prepare_sum(const Operators& operators, const at::Tensor& self,
                        const std::vector<int64_t>& dims, bool keep, const at::Tensor& out);

// "aten::native_layer_norm".
Preparation prepare_layer_norm(const Operators& operators, const std::vector<c10::IValue>& args,
                               const std::vector<at::Tensor>& outputs);

// "aten::_scaled_dot_product_flash_attention_for_cpu".
Preparation prepare_attention(const Operators& operators, const std::vector<c10::IValue>& args,
                              const std::vector<at::Tensor>& outputs);

}  // namespace bringup::torch_ext::graphs
