// Which overload of an operator writes its results into tensors that it is given.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace bringup::torch_ext {

// The overload that takes the arguments of `op`, a functional or in-place operator, and one out
// argument for each result: of add.Tensor and add_.Tensor it is add.out. Of the operators that were
// there when this was first asked.
std::optional<c10::OperatorHandle> find_out_form(const c10::OperatorHandle& op);

}  // namespace bringup::torch_ext
