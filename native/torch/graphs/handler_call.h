// Handlers of operators that take part in a capture: a call goes through Python first.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <nanobind/nanobind.h>

#include <vector>

namespace bringup::torch_ext::graphs {

// A dispatcher's value and what it is in Python; `numbers` are taken for tensors too, as in calls.
// Raises pybind11's cast_error.
nanobind::object to_python(const c10::IValue& value);
c10::IValue from_python(nanobind::handle value, const c10::TypePtr& type, bool numbers = false);

// Calls `handle(name, overload, arguments) -> (handled, result)` for a boxed call, all arguments in
// schema order. True: it was handled, and its results stand on the stack in the place of the
// arguments. Takes the GIL; what Python raises goes through the dispatcher as it is.
bool call_handler(const nanobind::callable& handle, const c10::OperatorHandle& op,
                  std::vector<c10::IValue>* stack);

// Whether `predicate(name, overload, arguments)` is true of a call; TypeError where it is no bool.
bool call_predicate(const nanobind::callable& predicate, const c10::OperatorHandle& op,
                    std::vector<c10::IValue>* stack);

}  // namespace bringup::torch_ext::graphs
