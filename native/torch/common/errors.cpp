#include "torch/common/errors.h"

#include <nanobind/nanobind.h>
#include <torch/csrc/Exceptions.h>

#include <exception>

namespace bringup::torch_ext {

void raise_current_python_error() {
  python_error error;
  error.persist();
  throw error;
}

void raise_error(const char* class_name, const std::string& message) {
  const nanobind::gil_scoped_acquire gil;
  PyObject* module = PyImport_ImportModule("bringup.errors");
  PyObject* type = module != nullptr ? PyObject_GetAttrString(module, class_name) : nullptr;
  if (type != nullptr) PyErr_SetString(type, message.c_str());
  Py_XDECREF(type);
  Py_XDECREF(module);
  raise_current_python_error();
}

void set_python_error_from_current_exception() {
  torch::translate_exception_to_python(std::current_exception());
}

}  // namespace bringup::torch_ext
