// Handlers of operators that take part in a capture: a call goes through Python first.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <nanobind/nanobind.h>

#include <vector>

namespace bringup::torch_ext::graphs {

// Calls `handle(name, overload, arguments) -> (handled, result)` for a boxed call, all arguments in
// schema order. True: it was handled, and its results stand on the stack in the place of the
// arguments. Takes the GIL; what Python raises goes through the dispatcher as it is.
bool call_handler(const nanobind::callable& handle, const c10::OperatorHandle& op,
                  std::vector<c10::IValue>* stack);

}  // namespace bringup::torch_ext::graphs
