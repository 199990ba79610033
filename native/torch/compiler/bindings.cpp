// bringup._native._torch.compiler: graphs of operators that run without Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/python_symnode.h>

#include "torch/common/argument.h"
#include "torch/common/errors.h"
#include "torch/common/tensor_caster.h"
#include "torch/compiler/generated_kernel.h"
#include "torch/compiler/program.h"
#include "torch/compiler/tensor_metadata.h"
#include "torch/module.h"

namespace nb = nanobind;

namespace bringup::torch_ext::compiler {
namespace {

// Where a value will be when it is needed.
struct Register {
  size_t place;
};

// What a step cannot take: the graph then runs through Python.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void refuse(const std::string& what) { throw Unsupported(what); }

// A number, a flag or a tensor, or None; of its own type.
std::optional<c10::IValue> plain_value(nb::handle value) {
  PyObject* object = value.ptr();
  if (object == Py_None) return c10::IValue();
  if (is_tensor_object(object)) return c10::IValue(THPVariable_Unpack(object));
  if (PyBool_Check(object)) return c10::IValue(object == Py_True);
  if (PyLong_Check(object)) {
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow == 0) return c10::IValue(number);
  }
  if (PyFloat_Check(object)) return c10::IValue(PyFloat_AS_DOUBLE(object));
  return std::nullopt;
}

// What a graph is called with: also the symbolic size of a nested tensor's ragged dimension, which
// no operator reads and results carry.
std::optional<c10::IValue> argument_value(nb::handle value) {
  if (torch::is_symint(pybind11::handle(value.ptr()))) {
    return c10::IValue(pybind11::handle(value.ptr()).cast<c10::SymInt>());
  }
  return plain_value(value);
}

bool is_integer(nb::handle value) {
  return PyLong_Check(value.ptr()) && !PyBool_Check(value.ptr());
}

// A constant as the schema's type wants it: dtypes, layouts and memory formats are int values.
c10::IValue constant_of(nb::handle value, const c10::TypePtr& declared) {
  PyObject* object = value.ptr();
  const c10::TypePtr type = without_optional(declared);
  if (THPDtype_Check(object)) {
    return static_cast<int64_t>(reinterpret_cast<THPDtype*>(object)->scalar_type);
  }
  if (THPLayout_Check(object)) {
    return static_cast<int64_t>(reinterpret_cast<THPLayout*>(object)->layout);
  }
  if (THPMemoryFormat_Check(object)) {
    return static_cast<int64_t>(reinterpret_cast<THPMemoryFormat*>(object)->memory_format);
  }
  if (THPDevice_Check(object)) return reinterpret_cast<THPDevice*>(object)->device;
  if (PyUnicode_Check(object)) return nb::cast<std::string>(value);
  const c10::TypeKind kind = type->kind();
  if (kind == c10::TypeKind::FloatType && is_integer(value)) return nb::cast<double>(value);
  if (kind == c10::TypeKind::IntType && PyBool_Check(object)) return int64_t{object == Py_True};
  if (auto found = plain_value(value)) {
    const bool is_number = kind == c10::TypeKind::TensorType && found->isScalar();
    return is_number ? c10::IValue(tensor_of_number(found->toScalar())) : *std::move(found);
  }
  refuse("a constant of type " + nb::cast<std::string>(nb::str(value.type())));
}

Operand operand_of(nb::handle value, const c10::TypePtr& declared);

Operand list_of(const nb::sequence& values, const c10::TypePtr& element) {
  Operand operand;
  bool has_registers = false;
  for (nb::handle item : values) {
    operand.items.push_back(operand_of(item, element));
    has_registers = has_registers || operand.items.back().is_register();
  }
  const c10::TypeKind kind = without_optional(element)->kind();
  if (kind == c10::TypeKind::IntType || kind == c10::TypeKind::SymIntType) {
    operand.kind = Operand::Kind::kIntegers;
  } else if (kind == c10::TypeKind::TensorType) {
    const bool optional = element->kind() == c10::TypeKind::OptionalType;
    operand.kind = optional ? Operand::Kind::kOptionalTensors : Operand::Kind::kTensors;
  } else if (!has_registers && kind == c10::TypeKind::FloatType) {
    c10::List<double> list;
    for (const Operand& item : operand.items) list.push_back(item.constant.toDouble());
    operand.constant = list;
  } else if (!has_registers && kind == c10::TypeKind::BoolType) {
    c10::List<bool> list;
    for (const Operand& item : operand.items) list.push_back(item.constant.toBool());
    operand.constant = list;
  } else {
    refuse("a list of " + element->str());
  }
  if (!has_registers && operand.kind != Operand::Kind::kConstant) {
    operand.constant = operand.value({});
    // An operator may keep a list, but none writes one.
    operand.kind = Operand::Kind::kConstant;
  }
  return operand;
}

Operand operand_of(nb::handle value, const c10::TypePtr& declared) {
  Operand operand;
  if (nb::isinstance<Register>(value)) {
    const c10::TypeKind wanted = without_optional(declared)->kind();
    operand.kind = wanted == c10::TypeKind::TensorType  ? Operand::Kind::kTensorRegister
                   : wanted == c10::TypeKind::FloatType ? Operand::Kind::kFloatRegister
                                                        : Operand::Kind::kRegister;
    operand.place = nb::cast<const Register&>(value).place;
    return operand;
  }
  const c10::TypePtr type = without_optional(declared);
  if (PyList_Check(value.ptr()) || PyTuple_Check(value.ptr())) {
    const auto list = type->cast<c10::ListType>();
    if (!list) refuse("a list for " + declared->str());
    return list_of(nb::cast<nb::sequence>(value), list->getElementType());
  }
  // One number stands for a whole list where the schema gives its length: `int[2] stride`.
  if (type->kind() == c10::TypeKind::ListType && value.ptr() != Py_None) {
    refuse("one value for " + declared->str());
  }
  operand.constant = constant_of(value, declared);
  return operand;
}

void add_call(Program& program, const std::string& op, const std::string& overload,
              const nb::sequence& arguments, const std::vector<int64_t>& results,
              const std::string& pass) {
  const c10::OperatorHandle handle =
      c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), overload.c_str());
  const c10::FunctionSchema& schema = handle.schema();
  if (nb::len(arguments) != schema.arguments().size() ||
      results.size() != schema.returns().size()) {
    refuse("another number of arguments or results than " + op + " has");
  }
  std::vector<Operand> operands;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    operands.push_back(operand_of(arguments[i], schema.arguments()[i].real_type()));
  }
  program.add_call(handle, std::move(operands), results, pass);
}

nb::object python_value(const c10::IValue& value) {
  if (value.isNone()) return nb::none();
  if (value.isTensor()) return nb::steal(THPVariable_Wrap(value.toTensor()));
  if (value.isBool()) return nb::bool_(value.toBool());
  if (value.isInt()) return nb::int_(value.toInt());
  if (value.isSymInt()) return nb::steal(pybind11::cast(value.toSymInt()).release().ptr());
  if (value.isDouble()) return nb::float_(value.toDouble());
  if (value.isList()) {
    nb::list items;
    for (const c10::IValue& item : value.toListRef()) items.append(python_value(item));
    return items;
  }
  TORCH_CHECK(false, "a compiled graph has a value of kind ", value.tagKind());
}

// A Python function is called with the GIL, and freed with it.
HostFunction host_function(const nb::callable& function) {
  std::shared_ptr<PyObject> kept(function.inc_ref().ptr(), [](PyObject* object) {
    if (!Py_IsInitialized()) return;
    const nb::gil_scoped_acquire gil;
    Py_DECREF(object);
  });
  return [kept](const std::vector<c10::IValue>& values) {
    const nb::gil_scoped_acquire gil;
    nb::list arguments;
    for (const c10::IValue& value : values) arguments.append(python_value(value));
    PyObject* result = PyObject_CallObject(kept.get(), nb::tuple(arguments).ptr());
    if (result == nullptr) raise_current_python_error();
    const nb::object owned = nb::steal(result);
    auto value = plain_value(owned);
    TORCH_CHECK(value.has_value(), "a compiled graph computes sizes, not ",
                nb::cast<std::string>(nb::str(owned.type())));
    return *std::move(value);
  };
}

void add_host_call(Program& program, const nb::callable& function, const nb::sequence& arguments,
                   int64_t result) {
  std::vector<Operand> operands;
  for (nb::handle item : arguments) operands.push_back(operand_of(item, c10::AnyType::get()));
  program.add_host_call(host_function(function), std::move(operands), result);
}

void finish(Program& program, const nb::sequence& outputs) {
  std::vector<Operand> operands;
  for (nb::handle item : outputs) operands.push_back(operand_of(item, c10::AnyType::get()));
  program.finish(std::move(operands));
}

// Warnings of operators become warnings of Python, which may be errors.
std::vector<c10::IValue> run_with_warnings(const Program& program,
                                           std::vector<c10::IValue> values) {
  torch::PyWarningHandler warnings;
  try {
    const nb::gil_scoped_release no_gil;
    return program.run(std::move(values));
  } catch (...) {
    warnings.set_in_exception();
    throw;
  }
}

// Takes the arguments out of the list, so that what a step reads last is freed there.
nb::tuple run(const Program& program, const nb::list& arguments) {
  std::vector<c10::IValue> values;
  values.reserve(nb::len(arguments));
  for (nb::handle item : arguments) {
    auto value = argument_value(item);
    if (!value.has_value()) {
      throw nb::type_error(("a compiled graph takes tensors and numbers, got " +
                            nb::cast<std::string>(nb::str(item.type())))
                               .c_str());
    }
    values.push_back(*std::move(value));
  }
  if (PyList_SetSlice(arguments.ptr(), 0, PY_SSIZE_T_MAX, nullptr) != 0) throw nb::python_error();
  const std::vector<c10::IValue> results = run_with_warnings(program, std::move(values));
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(results.size()));
  if (tuple == nullptr) throw nb::python_error();
  nb::tuple owned = nb::steal<nb::tuple>(tuple);
  for (size_t i = 0; i < results.size(); ++i) {
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), python_value(results[i]).release().ptr());
  }
  return owned;
}

}  // namespace
}  // namespace bringup::torch_ext::compiler

namespace bringup::torch_ext {

void bind_compiler(nb::module_& module) {
  using namespace compiler;
  nb::exception<Unsupported>(module, "UnsupportedStepError", PyExc_ValueError);
  nb::class_<Register>(module, "Register").def_ro("place", &Register::place);
  nb::class_<Program>(module, "Program")
      .def(nb::init<size_t>(), nb::arg("inputs"))
      .def("input",
           [](const Program& program, size_t place) {
             if (place >= program.inputs()) throw nb::index_error("no such input");
             return Register{place};
           })
      .def("new_register", [](Program& program) { return Register{program.new_register()}; })
      .def("add_call", &add_call)
      .def("add_host_call", &add_host_call)
      .def("add_element",
           [](Program& program, const Register& list, int64_t index, const Register& result) {
             program.add_element(list.place, index, result.place);
           })
      .def("finish", &finish)
      .def("run", &run);
  bind_generated_kernels(module);
  module.def("tensor_look", &tensor_look);
}

}  // namespace bringup::torch_ext
