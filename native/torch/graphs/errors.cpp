#include "torch/graphs/errors.h"

#include <c10/util/Exception.h>
#include <nanobind/nanobind.h>
#include <torch/csrc/Exceptions.h>

#include "torch/common/errors.h"

namespace bringup::torch_ext::graphs {

void set_python_error(const CaptureFailure& failure) {
  // bringup.graphs._source_location builds the exception and adds the user's line.
  PyObject* module = PyImport_ImportModule("bringup.graphs._source_location");
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

std::optional<std::string> failure_of(c10::function_ref<void()> body) {
  try {
    body();
  } catch (const CaptureFailure&) {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (python_error& error) {
    error.persist();  // takes it from the thread
    const nanobind::gil_scoped_acquire gil;
    if (!PyErr_GivenExceptionMatches(error.type, PyExc_Exception)) throw;  // Ctrl-C
    return error.what();
  } catch (const std::exception& error) {
    return error.what();
  }
  return std::nullopt;
}

}  // namespace bringup::torch_ext::graphs
