// bringup._native._torch.ops: what src/bringup/ops needs to turn a checked definition into an
// operator.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
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

// The shapes in which ops/kernel/kernel_op.py hands a definition over. Every name was checked
// there.
using ArgumentSpec = std::tuple<std::string, std::string, bool, bool, bool, bool, nb::object>;
using Program = std::vector<std::tuple<int, int, int64_t>>;
using DimensionSpec = std::tuple<std::string, Program, int, int64_t, int64_t>;
using OutputSpec = std::tuple<int, bool, std::vector<DimensionSpec>, int, std::vector<int>,
                              nb::object, nb::object, int, int, int>;
using CheckSpec =
    std::tuple<int, std::vector<int>, std::vector<DimensionSpec>, std::vector<nb::object>>;
using SourceSpec = std::tuple<int, int, bool>;
using KeyFieldSpec = std::tuple<int, int, int, int, std::vector<std::string>, std::vector<int64_t>,
                                std::tuple<std::string, Program>>;

at::ScalarType scalar_type(const nb::object& dtype) {
  if (!THPDtype_Check(dtype.ptr())) {
    raise_error(ErrorClass::kSchema,
                "expected a torch.dtype, got " + std::string(nb::repr(dtype).c_str()));
  }
  return reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
}

at::MemoryFormat memory_format(const nb::object& format) {
  if (!THPMemoryFormat_Check(format.ptr())) {
    raise_error(ErrorClass::kSchema,
                "expected a torch.memory_format, got " + std::string(nb::repr(format).c_str()));
  }
  return reinterpret_cast<THPMemoryFormat*>(format.ptr())->memory_format;
}

// Python's numbers of these are held to ours by a test: it has them without this library too.
void bind_kinds(nb::module_& module) {
  nb::enum_<CheckKind>(module, "CheckKind", nb::is_arithmetic())
      .value("SAME_SHAPE", CheckKind::kSameShape)
      .value("SAME_DTYPE", CheckKind::kSameDtype)
      .value("SHAPE", CheckKind::kShape)
      .value("DTYPE", CheckKind::kDtype)
      .value("LENGTH", CheckKind::kLength)
      .value("RANK", CheckKind::kRank);
  using Field = KeyField::Kind;
  nb::enum_<Field>(module, "KeyFieldKind", nb::is_arithmetic())
      .value("DTYPE", Field::kDtype)
      .value("LAYOUT", Field::kLayout)
      .value("CHOICE", Field::kChoice)
      .value("BUCKET", Field::kBucket);
  using Source = BackwardSource::Kind;
  nb::enum_<Source>(module, "SourceKind", nb::is_arithmetic())
      .value("GRAD", Source::kGrad)
      .value("INPUT", Source::kInput)
      .value("OUTPUT", Source::kOutput)
      .value("CONSTANT", Source::kConstant)
      .value("MASK", Source::kMask);
  nb::enum_<Layout>(module, "Layout", nb::is_arithmetic())
      .value("ROW", Layout::kRow)
      .value("COLUMN", Layout::kColumn)
      .value("STRIDED", Layout::kStrided)
      .value("NZ", Layout::kNz);
}

Expression expression(const std::string& text, const Program& program) {
  Expression result{text};
  for (const auto& [opcode, argument, value] : program) {
    result.program.push_back({static_cast<runtime::Opcode>(opcode), argument, value});
  }
  if (!program.empty()) runtime::check_program(result);
  return result;
}

std::vector<Dimension> dimensions(const std::vector<DimensionSpec>& specs) {
  std::vector<Dimension> result;
  for (const auto& [text, program, sliced, start, stop] : specs) {
    result.push_back({expression(text, program), sliced, start, stop});
  }
  return result;
}

Argument argument(const ArgumentSpec& spec) {
  const auto& [name, type, optional, keyword_only, mutated, required, default_value] = spec;
  Argument result;
  result.name = name;
  result.interned_name = PyUnicode_InternFromString(name.c_str());
  result.default_value = required ? nullptr : Py_NewRef(default_value.ptr());
  result.kind = argument_kind(type);
  result.optional = optional;
  result.keyword_only = keyword_only;
  result.mutated = mutated;
  return result;
}

void set_arguments(KernelOp& op, const std::vector<ArgumentSpec>& specs) {
  bool has_device = false;
  for (const ArgumentSpec& spec : specs) {
    const auto index = static_cast<int32_t>(op.arguments.size());
    const Argument& added = op.arguments.emplace_back(argument(spec));
    if (added.holds_tensors()) op.tensor_arguments.push_back(index);
    if (!added.keyword_only) op.max_positional = index + 1;
    op.mutates |= added.mutated;
    if (!has_device && added.kind == ArgumentKind::kTensor && !added.optional) {
      op.device_argument = index;
      has_device = true;
    }
  }
}

void set_rules(KernelOp& op, const std::vector<OutputSpec>& outputs,
               const std::vector<CheckSpec>& checks) {
  for (const auto& [like, list, shape, dtype_of, promoted, dtype, format, count, when, element] :
       outputs) {
    OutputRule& rule = op.outputs.emplace_back();
    rule.like = like;
    rule.list = list;
    rule.shape = dimensions(shape);
    rule.dtype_of = dtype_of;
    rule.promoted.assign(promoted.begin(), promoted.end());
    rule.dtype = scalar_type(dtype);
    rule.format = memory_format(format);
    rule.count = count;
    rule.when = when;
    rule.when_element = element;
    op.counts = std::max(op.counts, count + 1);
  }
  for (const auto& [kind, arguments, shape, dtypes] : checks) {
    Check check{
        static_cast<CheckKind>(kind), {arguments.begin(), arguments.end()}, dimensions(shape), {}};
    for (const nb::object& dtype : dtypes) check.dtypes.push_back(scalar_type(dtype));
    op.checks.push_back(std::move(check));
  }
}

void set_key_fields(KernelOp& op, const std::vector<KeyFieldSpec>& specs,
                    const std::vector<int>& strided) {
  op.layouts.assign(op.arguments.size(), 0);
  for (const int argument : strided) op.layouts[argument] = kAnyLayout;
  for (const auto& [kind, argument, bits, layouts, choices, numbers, predicate] : specs) {
    const KeyField& field = op.key_fields.emplace_back(KeyField{
        static_cast<KeyField::Kind>(kind), argument, bits, static_cast<LayoutMask>(layouts),
        choices, numbers, expression(std::get<0>(predicate), std::get<1>(predicate))});
    if (field.kind == KeyField::Kind::kLayout) op.layouts[argument] = field.layouts;
  }
}

void register_kernels(KernelOp& op) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto put = [&](c10::DispatchKey key, c10::KernelFunction kernel) {
    op.registrations.push_back(dispatcher.registerImpl(
        op.handle.operator_name(), key, std::move(kernel), std::nullopt, nullptr, "bringup"));
  };
  op.backend_trampoline = backend_kernel(op);
  op.autograd_trampoline = autograd_kernel(op);
  op.inplace_trampoline = inplace_kernel(op);
  put(c10::DispatchKey::CPU, op.backend_trampoline);
  put(c10::DispatchKey::PrivateUse1, op.backend_trampoline);
  put(c10::DispatchKey::Autograd, op.autograd_trampoline);
  if (op.mutates) put(c10::DispatchKey::ADInplaceOrView, op.inplace_trampoline);
}

// The schema is already defined in the dispatcher under `name`.
nb::object define(const std::string& name, const std::string& overload_name,
                  const std::vector<ArgumentSpec>& arguments, const std::vector<int>& returns,
                  const std::vector<OutputSpec>& outputs, const std::vector<CheckSpec>& checks,
                  const std::vector<KeyFieldSpec>& key_fields, const std::vector<int>& strided,
                  std::optional<bool> release_gil, bool device_code,
                  const std::tuple<std::string, Program>& grid, const std::string& callable_name,
                  const std::string& doc, nb::object overload, nb::object compile) {
  const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload_name.c_str());
  auto record = std::make_unique<KernelOp>(handle);
  record->name = overload_name.empty() ? name : name + "." + overload_name;
  record->callable_name = callable_name;
  record->doc = doc;
  set_arguments(*record, arguments);
  record->returns.assign(returns.begin(), returns.end());
  set_rules(*record, outputs, checks);
  set_key_fields(*record, key_fields, strided);
  if (release_gil) record->release_gil = *release_gil ? ReleaseGil::kAlways : ReleaseGil::kNever;
  record->device_code = device_code;
  record->grid = expression(std::get<0>(grid), std::get<1>(grid));
  record->overload = overload.release().ptr();
  record->compile = compile.release().ptr();

  KernelOp& op = publish(std::move(record));
  try {
    register_kernels(op);
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
    publish_without_returns(const_cast<KernelOp&>(kernel_op_of(function.ptr())), without);
  }
  return nb::capsule(kept.release(), [](void* given) noexcept {
    delete static_cast<c10::RegistrationHandleRAII*>(given);
  });
}

void set_backward(nb::handle function, const std::string& name, const std::string& overload_name,
                  const std::vector<SourceSpec>& sources, const std::vector<int>& receivers,
                  const std::vector<bool>& differentiable) {
  auto& op = const_cast<KernelOp&>(kernel_op_of(function.ptr()));
  auto backward = std::make_unique<Backward>(Backward{{name, overload_name}});
  backward->gradient_receivers.assign(receivers.begin(), receivers.end());
  backward->differentiable = differentiable;
  for (const auto& [number, index, optional] : sources) {
    const auto kind = static_cast<BackwardSource::Kind>(number);
    backward->sources.push_back({kind, index, optional});
    backward->masked |= kind == BackwardSource::Kind::kMask;
    if (kind == BackwardSource::Kind::kInput) backward->saved_inputs.push_back(index);
    if (kind == BackwardSource::Kind::kOutput) backward->saved_outputs.push_back(index);
    if (kind == BackwardSource::Kind::kConstant) backward->constants.push_back(index);
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
  bind_kinds(module);
  module.def("define", &define, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
             nb::arg(), nb::arg(), nb::arg("release_gil").none(), nb::arg(), nb::arg(), nb::arg(),
             nb::arg(), nb::arg(), nb::arg());
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
  module.attr("key_bits") = variant_field_bits();
  module.def("close", [](nb::handle function) {
    close(const_cast<KernelOp&>(kernel_op_of(function.ptr())));
  });
  module.def(
      "variant_count",
      [](nb::handle function) { return kernel_op_of(function.ptr()).variant_count.load(); },
      "How many binaries the operator has loaded.");
}

}  // namespace bringup::torch_ext
