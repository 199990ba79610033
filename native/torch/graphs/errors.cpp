#include "torch/graphs/errors.h"

#include <nanobind/nanobind.h>

#include "torch/common/errors.h"

namespace bringup::torch_ext::graphs {

void set_python_error(const char* message) {
  // bringup.graphs._origin.capture_error(message) builds the exception and adds the user's line.
  PyObject* module = PyImport_ImportModule("bringup.graphs._origin");
  if (module == nullptr) return;
  PyObject* error = PyObject_CallMethod(module, "capture_error", "s", message);
  Py_DECREF(module);
  if (error == nullptr) return;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
  Py_DECREF(error);
}

void throw_through_dispatcher(const CaptureFailure& failure) {
  const nanobind::gil_scoped_acquire gil;
  set_python_error(failure.what());
  raise_current_python_error();
}

}  // namespace bringup::torch_ext::graphs
