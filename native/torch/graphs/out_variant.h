// Which operator writes the results of another one into tensors that it is given.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace bringup::torch_ext::graphs {

// The overload with the same arguments as `functional` and one out argument for each result, when
// it has a cpu kernel of its own. The generated ones (run the functional form, then copy) do not
// count.
std::optional<c10::OperatorHandle> find_out_variant(const c10::OperatorHandle& functional);

}  // namespace bringup::torch_ext::graphs
