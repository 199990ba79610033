// bringup._native._torch.ops: what src/bringup/ops needs to turn a checked definition into an
// operator.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/MemoryFormat.h>

#include "torch/common/errors.h"
#include "torch/module.h"
#include "torch/ops/adopted_call.h"
#include "torch/ops/autograd.h"
#include "torch/ops/boxed.h"
#include "torch/ops/fast_call.h"
#include "torch/ops/parallel.h"
#include "torch/ops/small_memory.h"

namespace nb = nanobind;

namespace bringup::torch_ext {
namespace {

at::ScalarType scalar_type(const nb::object& dtype) {
  if (!THPDtype_Check(dtype.ptr())) {
    raise_error(ErrorClass::kSchema, "expected a torch.dtype, got ", nb::repr(dtype).c_str());
  }
  return reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
}

at::MemoryFormat memory_format(const nb::object& format) {
  if (!THPMemoryFormat_Check(format.ptr())) {
    raise_error(ErrorClass::kSchema, "expected a torch.memory_format, got ",
                nb::repr(format).c_str());
  }
  return reinterpret_cast<THPMemoryFormat*>(format.ptr())->memory_format;
}

// What a definition consists of, as Python builds it. The expressions in it, and the enums, are
// those of the native core.
void bind_records(nb::module_& module) {
  nb::class_<Dimension>(module, "Dimension")
      .def(nb::init<Expression, int32_t, int64_t, int64_t>(), nb::kw_only(), nb::arg("size"),
           nb::arg("sliced"), nb::arg("start"), nb::arg("stop"));
  nb::class_<OutputRule>(module, "OutputRule")
      .def(
          "__init__",
          [](OutputRule* self, int32_t like, bool list, bool number, std::vector<Dimension> shape,
             int32_t dtype_of, std::vector<int32_t> promoted, const nb::object& dtype,
             const nb::object& format, int32_t count, int32_t when, int32_t when_element) {
            new (self) OutputRule{like,
                                  list,
                                  number,
                                  std::move(shape),
                                  dtype_of,
                                  std::move(promoted),
                                  scalar_type(dtype),
                                  memory_format(format),
                                  count,
                                  when,
                                  when_element};
          },
          nb::kw_only(), nb::arg("like"), nb::arg("list"), nb::arg("number"), nb::arg("shape"),
          nb::arg("dtype_of"), nb::arg("promoted"), nb::arg("dtype"), nb::arg("format"),
          nb::arg("count"), nb::arg("when"), nb::arg("when_element"));
  nb::class_<Check>(module, "Check")
      .def(
          "__init__",
          [](Check* self, CheckKind kind, std::vector<int32_t> arguments,
             std::vector<Dimension> shape, const std::vector<nb::object>& dtypes) {
            Check made{kind, std::move(arguments), std::move(shape), {}};
            for (const nb::object& dtype : dtypes) made.dtypes.push_back(scalar_type(dtype));
            new (self) Check(std::move(made));
          },
          nb::kw_only(), nb::arg("kind"), nb::arg("arguments"), nb::arg("shape"),
          nb::arg("dtypes"));
  nb::class_<KeyField>(module, "KeyField")
      .def(
          "__init__",
          [](KeyField* self, KeyFieldKind kind, int32_t argument, int bits, LayoutMask layouts,
             std::vector<std::string> choices, std::vector<int64_t> numbers,
             std::optional<Expression> predicate) {
            new (self) KeyField{kind,
                                argument,
                                bits,
                                layouts,
                                std::move(choices),
                                std::move(numbers),
                                std::move(predicate).value_or(Expression())};
          },
          nb::kw_only(), nb::arg("kind"), nb::arg("argument"), nb::arg("bits"), nb::arg("layouts"),
          nb::arg("choices"), nb::arg("numbers"), nb::arg("predicate").none());
  nb::class_<BackwardSource>(module, "BackwardSource")
      .def(nb::init<SourceKind, int32_t, bool>(), nb::kw_only(), nb::arg("kind"), nb::arg("number"),
           nb::arg("optional"));
}

void set_arguments(KernelOp& op) {
  const auto count = static_cast<int32_t>(op.arguments.size());
  for (int32_t i = count; i-- > 0;) {
    const Argument& argument = op.arguments[i];
    op.mutates |= argument.mutated;
    if (!argument.keyword_only) op.max_positional = std::max(op.max_positional, i + 1);
    if (argument.kind == ArgumentKind::kTensor && !argument.optional) op.device_argument = i;
    if (argument.kind == ArgumentKind::kGenerator) op.generator = i;
    if (argument.holds_tensors()) op.tensor_arguments.insert(op.tensor_arguments.begin(), i);
  }
}

void set_key_fields(KernelOp& op, std::vector<KeyField> fields, const std::vector<int>& strided) {
  op.layouts.assign(op.arguments.size(), 0);
  for (const int argument : strided) op.layouts.at(argument) = kAnyLayout;
  op.key_fields = std::move(fields);
  for (const KeyField& field : op.key_fields) {
    if (field.kind == KeyFieldKind::kLayout) op.layouts.at(field.argument) = field.layouts;
  }
}

// The schema is already defined in the dispatcher under `name`. `grid`: none for 1;
// `work_items`: none for unknown.
nb::object define(const std::string& name, const std::string& overload_name,
                  std::vector<int32_t> returns, std::vector<OutputRule> outputs,
                  std::vector<Check> checks, std::vector<KeyField> key_fields,
                  const std::vector<int>& strided, std::optional<bool> release_gil,
                  std::optional<Expression> grid, std::optional<Expression> work_items, bool cuda,
                  const std::string& callable_name, const std::string& doc, nb::object overload,
                  nb::object compile) {
  const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload_name.c_str());
  auto record = std::make_unique<KernelOp>(handle);
  record->callable_name = callable_name;
  record->doc = doc;
  set_arguments(*record);
  record->returns = std::move(returns);
  record->outputs = std::move(outputs);
  for (const OutputRule& rule : record->outputs) {
    record->counts = std::max(record->counts, rule.count + 1);
    record->waits |= rule.number || rule.count >= 0;
  }
  record->checks = std::move(checks);
  set_key_fields(*record, std::move(key_fields), strided);
  if (release_gil) record->release_gil = *release_gil ? ReleaseGil::kAlways : ReleaseGil::kNever;
  record->grid = std::move(grid).value_or(Expression{"1"});
  record->work_items = std::move(work_items).value_or(Expression{});
  record->overload = overload.release().ptr();
  record->compile = compile.release().ptr();

  KernelOp& op = *record;
  publish(std::move(record));
  try {
    register_kernels(op, cuda);
  } catch (...) {
    close(op);  // before its definition goes
    throw;
  }
  PyObject* function = make_kernel_function(op, op.callable_name.c_str(), op.doc.c_str());
  if (function == nullptr) raise_current_python_error();
  return nb::steal(function);
}

// Makes the operator `other`, defined already, run `name` and return nothing. `function` is the
// callable of `name`, or None where that is no kernel operator. Gives what keeps the registrations.
nb::object run_without_returns(const std::string& name, const std::string& overload_name,
                               const std::string& other, nb::handle function) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto handle = dispatcher.findSchemaOrThrow(name.c_str(), overload_name.c_str());
  const auto without = dispatcher.findSchemaOrThrow(other.c_str(), "");
  // Below autograd, so that the operator's own autograd kernel is what a call comes to next.
  auto kept = std::make_unique<c10::RegistrationHandleRAII>(
      dispatcher.registerImpl(without.operator_name(), c10::DispatchKey::CompositeExplicitAutograd,
                              kernel_without_returns(handle), std::nullopt, nullptr, "bringup"));
  if (!function.is_none()) {
    publish_without_returns(kernel_op_of(function.ptr()), without);
  }
  return nb::capsule(kept.release(), [](void* given) noexcept {
    delete static_cast<c10::RegistrationHandleRAII*>(given);
  });
}

void set_backward(nb::handle function, const std::string& name, const std::string& overload_name,
                  const std::vector<BackwardSource>& sources, const std::vector<int>& receivers,
                  const std::vector<bool>& differentiable) {
  auto& op = const_cast<KernelOp&>(kernel_op_of(function.ptr()));
  auto backward = std::make_unique<Backward>(Backward{{name, overload_name}});
  backward->gradient_receivers.assign(receivers.begin(), receivers.end());
  backward->differentiable = differentiable;
  backward->sources = sources;
  for (const BackwardSource& source : sources) {
    backward->masked |= source.kind == SourceKind::kMask;
    if (source.kind == SourceKind::kInput) backward->saved_inputs.push_back(source.index);
    if (source.kind == SourceKind::kOutput) backward->saved_outputs.push_back(source.index);
    if (source.kind == SourceKind::kConstant) backward->constants.push_back(source.index);
  }
  // Never freed: nodes of graphs that are alive refer to it.
  op.backward.store(backward.release(), std::memory_order_release);
}

// The operator whose autograd kernel takes over where an input has a tangent; it has the same
// schema.
void set_forward_mode(nb::handle function, const std::string& name,
                      const std::string& overload_name) {
  auto& op = const_cast<KernelOp&>(kernel_op_of(function.ptr()));
  // Never freed: a call may be on its way there.
  op.forward_mode.store(new c10::OperatorName(name, overload_name), std::memory_order_release);
}

// For all packages of this module; other exceptions go on to nanobind.
void translate_exception(const std::exception_ptr& exception, void*) {
  try {
    std::rethrow_exception(exception);
  } catch (const ::python_error&) {
    set_python_error_from_current_exception();
  } catch (const c10::Error&) {
    set_python_error_from_current_exception();
  }
}

}  // namespace

void bind_ops(nanobind::module_& module) {
  if (!init_kernel_function_type()) throw nb::python_error();
  PyTypeObject* adopted_call = adopted_call_type();
  if (adopted_call == nullptr) throw nb::python_error();
  module.attr("AdoptedCall") = nb::borrow(reinterpret_cast<PyObject*>(adopted_call));
  install_parallel_for();
  nb::register_exception_translator(&translate_exception);
  bind_records(module);
  module.def("define", &define, nb::kw_only(), nb::arg("name"), nb::arg("overload_name"),
             nb::arg("returns"), nb::arg("outputs"), nb::arg("checks"), nb::arg("key_fields"),
             nb::arg("strided"), nb::arg("release_gil").none(), nb::arg("grid").none(),
             nb::arg("work_items").none(), nb::arg("cuda"), nb::arg("callable_name"),
             nb::arg("doc"), nb::arg("overload"), nb::arg("compile"));
  module.def("run_without_returns", &run_without_returns, nb::arg(), nb::arg(), nb::arg(),
             nb::arg().none());
  module.def("set_backward", &set_backward);
  module.def("set_forward_mode", &set_forward_mode);
  module.def("dtype_of_number", [](int number) {
    return nb::borrow(
        reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<at::ScalarType>(number))));
  });
  module.def("set_output_pool", &set_output_pool);
  module.def("pooled_blocks", &pooled_blocks);
  module.def("close", [](nb::handle function, nb::object instead) {
    auto& op = const_cast<KernelOp&>(kernel_op_of(function.ptr()));
    // The former callable stays alive: another thread may be calling it.
    op.overload = instead.release().ptr();
    close(op);
  });
  module.def(
      "variant_count",
      [](nb::handle function) { return kernel_op_of(function.ptr()).variant_count.load(); },
      "How many binaries the operator has loaded.");
}

}  // namespace bringup::torch_ext
