#include "torch/graphs/handler_call.h"

#include <nanobind/stl/string.h>
#include <pybind11/pybind11.h>

#include <optional>

#include "torch/common/errors.h"

// Of torch/csrc/jit/python/pybind_utils.h, which brings half of torch with it.
namespace torch::jit {
pybind11::object toPyObject(c10::IValue value);
c10::IValue toIValue(pybind11::handle object, const c10::TypePtr& type, std::optional<int32_t> n);
class ToIValueAllowNumbersAsTensors {
  bool old_;

 public:
  explicit ToIValueAllowNumbersAsTensors(bool enable);
  ~ToIValueAllowNumbersAsTensors();
};
}  // namespace torch::jit

namespace bringup::torch_ext::graphs {

namespace nb = nanobind;

nb::object to_python(const c10::IValue& value) {
  return nb::steal(torch::jit::toPyObject(value).release().ptr());
}

c10::IValue from_python(nb::handle value, const c10::TypePtr& type, bool numbers) {
  const torch::jit::ToIValueAllowNumbersAsTensors as_tensors(numbers);
  return torch::jit::toIValue(pybind11::handle(value.ptr()), type, std::nullopt);
}

namespace {

void push_results(const c10::FunctionSchema& schema, nb::handle result,
                  std::vector<c10::IValue>* stack) {
  const auto& returns = schema.returns();
  const auto push = [&](size_t i, nb::handle value) {
    stack->push_back(from_python(value, returns[i].real_type()));
  };
  if (returns.empty()) return;
  if (returns.size() == 1) return push(0, result);
  const auto all = nb::cast<nb::sequence>(nb::borrow(result));
  if (nb::len(all) != returns.size()) {
    raise_error(ErrorClass::kContract,
                schema.name() + " returns " + std::to_string(returns.size()) +
                    " values, its graph handler gave " + std::to_string(nb::len(all)));
  }
  for (size_t i = 0; i < returns.size(); ++i) push(i, nb::object(all[i]));
}

// What Python answers to a call, to `take`. What it raises goes through the dispatcher.
template <class Take>
bool ask(const nb::callable& function, const c10::OperatorHandle& op,
         std::vector<c10::IValue>* stack, Take&& take) {
  const nb::gil_scoped_acquire gil;
  try {
    nb::list arguments;
    for (size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); ++i) {
      arguments.append(to_python((*stack)[i]));
    }
    const auto& name = op.operator_name();
    return take(function(name.name, name.overload_name, arguments));
  } catch (nb::python_error& error) {
    error.restore();
    raise_current_python_error();
  } catch (pybind11::error_already_set& error) {
    error.restore();
    raise_current_python_error();
  }
}

}  // namespace

bool call_handler(const nb::callable& handle, const c10::OperatorHandle& op,
                  std::vector<c10::IValue>* stack) {
  return ask(handle, op, stack, [&](const nb::object& answer) {
    const auto pair = nb::cast<nb::tuple>(answer);
    if (!nb::cast<bool>(pair[0])) return false;
    stack->resize(stack->size() - op.schema().arguments().size());
    push_results(op.schema(), pair[1], stack);
    return true;
  });
}

bool call_predicate(const nb::callable& predicate, const c10::OperatorHandle& op,
                    std::vector<c10::IValue>* stack) {
  return ask(predicate, op, stack, [](const nb::object& answer) { return nb::cast<bool>(answer); });
}

}  // namespace bringup::torch_ext::graphs
