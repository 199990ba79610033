// A call from Python to an operator, natively: its arguments in the schema's order, Python's
// numbers and texts as native calls take them (of exactly these types, and without loss), and
// results as an overload gives them. False: the slow path converts or refuses; no Python exception
// is set then.
#pragma once

#include <ATen/core/ivalue.h>
#include <Python.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>

#include <cstdint>
#include <vector>

#include "torch/common/argument.h"

namespace bringup::torch_ext {

// Lets other Python threads in from release() on, for as long as this lives.
class GilRelease {
 public:
  GilRelease() = default;
  ~GilRelease() {
    if (thread_ != nullptr) PyEval_RestoreThread(thread_);
  }
  GilRelease& operator=(GilRelease&&) = delete;

  void release() {
    if (thread_ == nullptr) thread_ = PyEval_SaveThread();
  }

 private:
  PyThreadState* thread_ = nullptr;
};

// Puts every argument into its slot: positional or by keyword; null: its default. False: the call
// does not fit the schema.
inline bool bind_arguments(const std::vector<Argument>& arguments, Py_ssize_t max_positional,
                           PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                           PyObject** slots) {
  const auto count = static_cast<Py_ssize_t>(arguments.size());
  if (nargs > max_positional) return false;
  for (Py_ssize_t i = 0; i < count; ++i) slots[i] = i < nargs ? args[i] : nullptr;
  // Names in a call are interned nearly always, as ours are, so their texts are compared only when
  // none of them is the same object.
  const auto index_of = [&](PyObject* name) {
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (arguments[i].interned_name == name) return i;
    }
    Py_ssize_t i = 0;
    while (i < count && PyUnicode_Compare(arguments[i].interned_name, name) != 0) ++i;
    return i;
  };
  const Py_ssize_t num_keywords = kwnames != nullptr ? PyTuple_GET_SIZE(kwnames) : 0;
  for (Py_ssize_t k = 0; k < num_keywords; ++k) {
    const Py_ssize_t i = index_of(PyTuple_GET_ITEM(kwnames, k));
    if (i == count || slots[i] != nullptr) return false;
    slots[i] = args[nargs + k];
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (slots[i] == nullptr && !arguments[i].default_value) return false;
  }
  return true;
}

inline bool as_int(PyObject* object, int64_t& value) {
  if (!PyLong_CheckExact(object)) return false;
  int overflow = 0;
  value = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0;
}

// A float, or an int that a double holds exactly.
inline bool as_float(PyObject* object, double& value) {
  if (PyFloat_CheckExact(object)) {
    value = PyFloat_AS_DOUBLE(object);
    return true;
  }
  int64_t integer = 0;
  constexpr int64_t kExact = int64_t{1} << 53;
  if (!as_int(object, integer) || integer > kExact || integer < -kExact) return false;
  value = static_cast<double>(integer);
  return true;
}

// `Flag`: bool, or int64_t as the kernel ABI carries it.
template <class Flag>
bool as_bool(PyObject* object, Flag& value) {
  value = object == Py_True;
  return PyBool_Check(object);
}

// The text, which `object` keeps, or null: a lone surrogate is none.
inline const char* as_text(PyObject* object, Py_ssize_t& size) {
  const char* text =
      PyUnicode_CheckExact(object) ? PyUnicode_AsUTF8AndSize(object, &size) : nullptr;
  if (text == nullptr) PyErr_Clear();
  return text;
}

// A bool, int, float or complex, exactly.
inline bool as_number(PyObject* object, at::Scalar& value) {
  int64_t integer = 0;
  if (PyFloat_CheckExact(object)) {
    value = PyFloat_AS_DOUBLE(object);
  } else if (PyBool_Check(object)) {
    value = object == Py_True;
  } else if (as_int(object, integer)) {
    value = integer;
  } else if (PyComplex_CheckExact(object)) {
    value = c10::complex<double>(PyComplex_RealAsDouble(object), PyComplex_ImagAsDouble(object));
  } else {
    return false;
  }
  return true;
}

// The small objects of torch that stand for a number, a device or a generator; None: none of
// `kind`.
inline c10::IValue constant_of(ArgumentKind kind, PyObject* object) {
  if (kind == ArgumentKind::kDtype && THPDtype_Check(object)) {
    return static_cast<int64_t>(reinterpret_cast<THPDtype*>(object)->scalar_type);
  }
  if (kind == ArgumentKind::kDevice && THPDevice_Check(object)) {
    return reinterpret_cast<THPDevice*>(object)->device;
  }
  if (kind == ArgumentKind::kLayout && THPLayout_Check(object)) {
    return static_cast<int64_t>(reinterpret_cast<THPLayout*>(object)->layout);
  }
  if (kind == ArgumentKind::kMemoryFormat && THPMemoryFormat_Check(object)) {
    return static_cast<int64_t>(reinterpret_cast<THPMemoryFormat*>(object)->memory_format);
  }
  if (kind == ArgumentKind::kGenerator && THPGenerator_Check(object)) {
    return reinterpret_cast<THPGenerator*>(object)->cdata;
  }
  return {};
}

// A list of what `make` gives for each number, which it takes over. Null with a Python exception
// set when that fails.
template <class Make>
PyObject* list_of(Py_ssize_t size, Make make) {
  PyObject* list = PyList_New(size);
  for (Py_ssize_t i = 0; list != nullptr && i < size; ++i) {
    PyObject* item = make(i);
    if (item == nullptr) Py_CLEAR(list);
    if (list != nullptr) PyList_SET_ITEM(list, i, item);
  }
  return list;
}

// What a callable returns, likewise: None, one object or a tuple.
template <class Make>
PyObject* results_of(Py_ssize_t size, Make make) {
  if (size == 0) return Py_NewRef(Py_None);
  if (size == 1) return make(0);
  PyObject* results = PyTuple_New(size);
  for (Py_ssize_t i = 0; results != nullptr && i < size; ++i) {
    PyObject* result = make(i);
    if (result == nullptr) Py_CLEAR(results);
    if (results != nullptr) PyTuple_SET_ITEM(results, i, result);
  }
  return results;
}

}  // namespace bringup::torch_ext
