#include "torch/graphs/slot_type.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

namespace bringup::torch_ext::graphs {
namespace {

namespace nb = nanobind;

std::optional<int64_t> as_int(nb::handle value) {
  if (PyLong_CheckExact(value.ptr())) {
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    return overflow == 0 ? std::optional(number) : std::nullopt;
  }
  if (PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr())) return std::nullopt;
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) {
    // A float tensor, or one of several elements, has __index__ and refuses to be one.
    if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw nb::python_error();
    PyErr_Clear();
    return std::nullopt;
  }
  const int64_t number = PyLong_AsLongLong(index.ptr());
  if (number == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return std::nullopt;
  }
  return number;
}

std::optional<double> as_float(nb::handle value) {
  if (PyFloat_Check(value.ptr())) return PyFloat_AS_DOUBLE(value.ptr());
  if (const auto number = as_int(value)) return static_cast<double>(*number);
  return std::nullopt;
}

std::optional<HostValue> as_number(nb::handle value) {
  if (PyBool_Check(value.ptr())) return HostValue(value.ptr() == Py_True);
  if (const auto number = as_int(value)) return HostValue(*number);
  if (PyFloat_Check(value.ptr())) return HostValue(PyFloat_AS_DOUBLE(value.ptr()));
  if (!PyComplex_Check(value.ptr())) return std::nullopt;
  return HostValue(c10::complex<double>(PyComplex_RealAsDouble(value.ptr()),
                                        PyComplex_ImagAsDouble(value.ptr())));
}

// A text without NUL: kernels read it up to there.
std::optional<HostValue> as_text(nb::handle value) {
  if (!PyUnicode_Check(value.ptr())) return std::nullopt;
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (text == nullptr) throw nb::python_error();
  if (std::strlen(text) != static_cast<size_t>(size)) return std::nullopt;
  return HostValue(std::string(text, static_cast<size_t>(size)));
}

// The elements as a list or tuple; nothing when it is no sequence that is taken.
nb::object as_sequence(nb::handle value) {
  if (PyList_Check(value.ptr()) || PyTuple_Check(value.ptr())) return nb::borrow(value);
  if (PyRange_Check(value.ptr())) return nb::list(nb::borrow(value));
  if (PyUnicode_Check(value.ptr()) || !nb::hasattr(value, "tolist")) return {};
  nb::object list = value.attr("tolist")();
  return PyList_Check(list.ptr()) ? list : nb::object();
}

template <class T>
c10::List<T> typed(const std::vector<HostValue>& elements) {
  c10::List<T> list;
  list.reserve(elements.size());
  for (const HostValue& element : elements) list.push_back(element.to<T>());
  return list;
}

}  // namespace

std::optional<SlotType> SlotType::of(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.real_type();
  switch (const ArgumentKind kind = kind_of(*without_optional(type))) {
    case ArgumentKind::kOptionalTensorList:
    case ArgumentKind::kDevice:
    case ArgumentKind::kLayout:
    case ArgumentKind::kMemoryFormat:
    case ArgumentKind::kComplex:
    case ArgumentKind::kGenerator:
    case ArgumentKind::kOther:
      return std::nullopt;
    default:
      return SlotType(kind, type->kind() == c10::TypeKind::OptionalType);
  }
}

const char* SlotType::word() const {
  switch (kind_) {
    case ArgumentKind::kInt:
      return "int";
    case ArgumentKind::kFloat:
      return "float";
    case ArgumentKind::kBool:
      return "bool";
    case ArgumentKind::kNumber:
      return "number";
    case ArgumentKind::kString:
      return "str";
    case ArgumentKind::kDtype:
      return "dtype";
    default:
      return "Tensor";
  }
}

std::string SlotType::name() const {
  return std::string(word()) + (is_list_ ? "[]" : "") + (optional_ ? "?" : "");
}

std::string SlotType::words() const {
  const std::string article = is_list_ ? "a list of " : kind_ == ArgumentKind::kInt ? "an " : "a ";
  const std::string what = is_tensor() && !is_list_ ? "tensor" : is_tensor() ? "tensors" : word();
  return article + what + (optional_ ? " or None" : "");
}

std::optional<HostValue> SlotType::element(nb::handle value) const {
  switch (kind_) {
    case ArgumentKind::kInt: {
      const auto number = as_int(value);
      return number ? std::optional<HostValue>(*number) : std::nullopt;
    }
    case ArgumentKind::kFloat: {
      const auto number = as_float(value);
      return number ? std::optional<HostValue>(*number) : std::nullopt;
    }
    case ArgumentKind::kBool:
      if (!PyBool_Check(value.ptr())) return std::nullopt;
      return HostValue(value.ptr() == Py_True);
    case ArgumentKind::kNumber:
      return as_number(value);
    case ArgumentKind::kString:
      return as_text(value);
    case ArgumentKind::kTensor:
      if (!THPVariable_Check(value.ptr())) return std::nullopt;
      return HostValue(THPVariable_Unpack(value.ptr()));
    default:
      break;
  }
  if (!THPDtype_Check(value.ptr())) return std::nullopt;
  const auto dtype = reinterpret_cast<THPDtype*>(value.ptr())->scalar_type;
  return HostValue(static_cast<int64_t>(dtype));
}

std::optional<HostValue> SlotType::from_python(nb::handle value) const {
  if (value.is_none()) return optional_ ? std::optional(HostValue()) : std::nullopt;
  if (!is_list_) return element(value);
  // A tensor has tolist(), and is no list of tensors.
  if (is_tensor() && THPVariable_Check(value.ptr())) return std::nullopt;
  const nb::object sequence = as_sequence(value);
  if (!sequence.is_valid()) return std::nullopt;
  std::vector<HostValue> elements;
  // An element's __index__ may change the list.
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence.ptr()); ++i) {
    const auto item = nb::borrow(PySequence_Fast_GET_ITEM(sequence.ptr(), i));
    auto converted = element(item);
    if (!converted) return std::nullopt;
    elements.push_back(std::move(*converted));
  }
  if (kind_ == ArgumentKind::kTensor) return HostValue(typed<at::Tensor>(elements));
  if (kind_ == ArgumentKind::kInt) return HostValue(typed<int64_t>(elements));
  if (kind_ == ArgumentKind::kFloat) return HostValue(typed<double>(elements));
  return HostValue(typed<bool>(elements));
}

nb::object SlotType::element_to_python(const c10::IValue& value) const {
  if (value.isBool()) return nb::bool_(value.toBool());
  if (kind_ == ArgumentKind::kDtype) {
    return nb::borrow(reinterpret_cast<PyObject*>(
        torch::getTHPDtype(static_cast<at::ScalarType>(value.toInt()))));
  }
  if (value.isTensor()) return nb::steal(THPVariable_Wrap(value.toTensor()));
  if (value.isInt()) return nb::int_(value.toInt());
  if (value.isDouble()) return nb::float_(value.toDouble());
  if (value.isString()) return nb::str(value.toStringRef().c_str());
  const c10::complex<double> number = value.toComplexDouble();
  return nb::steal(PyComplex_FromDoubles(number.real(), number.imag()));
}

nb::object SlotType::to_python(const HostValue& value) const {
  if (value.isNone()) return nb::none();
  if (!value.isList()) return element_to_python(value);
  nb::list list;
  for (const c10::IValue& element : value.toList()) list.append(element_to_python(element));
  return list;
}

}  // namespace bringup::torch_ext::graphs
