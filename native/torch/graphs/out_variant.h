// Which operator writes the results of another one into tensors that it is given.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

namespace bringup::torch_ext::graphs {

struct OutVariant {
  c10::OperatorHandle op;
  std::vector<c10::IValue> more;  // arguments between those of the functional form and the results
};

// Whether torch itself registered the operator's cpu kernel.
bool has_kernel_of_torch(const c10::OperatorHandle& op);

// The operator that takes the arguments of `functional` and one out argument for each result, when
// it has a cpu kernel of its own. The generated ones (run the functional form, then copy) do not
// count, nor does an operator of torch whose kernel other code has put in place of torch's: that
// one has to run.
std::optional<OutVariant> find_out_variant(const c10::OperatorHandle& functional);

}  // namespace bringup::torch_ext::graphs
