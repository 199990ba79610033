#include "torch/graphs/errors.h"

#include <nanobind/nanobind.h>

#include "torch/common/errors.h"

namespace bringup::torch_ext::graphs {

void set_python_error(const CaptureFailure& failure) {
  // bringup.graphs._origin builds the exception and adds the user's line.
  PyObject* module = PyImport_ImportModule("bringup.graphs._origin");
  if (module == nullptr) return;
  const auto* read = dynamic_cast<const HostRead*>(&failure);
  PyObject* error = read == nullptr
                        ? PyObject_CallMethod(module, "capture_error", "s", failure.what())
                        : PyObject_CallMethod(module, "host_read_error", "ss", failure.what(),
                                              read->tensor().c_str());
  Py_DECREF(module);
  if (error == nullptr) return;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
  Py_DECREF(error);
}

void throw_through_dispatcher(const CaptureFailure& failure) {
  const nanobind::gil_scoped_acquire gil;
  set_python_error(failure);
  raise_current_python_error();
}

}  // namespace bringup::torch_ext::graphs
