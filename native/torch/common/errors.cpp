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

void raise_error(ErrorClass kind, const std::string& message) {
  const nanobind::gil_scoped_acquire gil;
  set_error(kind, message);
  raise_current_python_error();
}

void set_python_error_from_current_exception() {
  torch::translate_exception_to_python(std::current_exception());
}

void clear_python_error() {
  const nanobind::gil_scoped_acquire gil;
  PyErr_Clear();
}

}  // namespace bringup::torch_ext
