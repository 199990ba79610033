// The classes of bringup.errors that native code raises: one table, one way; no torch or nanobind.
#pragma once

#include <Python.h>

#include <array>
#include <cstdint>
#include <string>

namespace bringup {

enum class ErrorClass : uint8_t {
  kContract,
  kExpiredHandle,
  kKernel,
  kPass,
  kPassFatal,
  kPassSkip,
  kSchema,
  kUpdate,
};

inline constexpr std::array kErrorClassNames{
    "ContractError",  "ExpiredHandleError", "KernelError", "PassError",
    "PassFatalError", "PassSkipException",  "SchemaError", "UpdateError",
};
static_assert(kErrorClassNames.size() == static_cast<size_t>(ErrorClass::kUpdate) + 1);

// A new reference to the class; null with a Python exception set where it cannot be imported.
inline PyObject* error_type(ErrorClass kind) {
  PyObject* module = PyImport_ImportModule("bringup.errors");
  if (module == nullptr) return nullptr;
  PyObject* type = PyObject_GetAttrString(module, kErrorClassNames[static_cast<size_t>(kind)]);
  Py_DECREF(module);
  return type;
}

// Sets the Python exception. Needs the GIL.
inline void set_error(ErrorClass kind, const std::string& message) {
  PyObject* type = error_type(kind);
  if (type == nullptr) return;
  PyErr_SetString(type, message.c_str());
  Py_DECREF(type);
}

// A new exception, not set, or null with one set; `status`, unless 0, is a C library's.
inline PyObject* new_error(ErrorClass kind, const std::string& message, int64_t status = 0) {
  PyObject* type = error_type(kind);
  if (type == nullptr) return nullptr;
  PyObject* arguments = Py_BuildValue("(s)", message.c_str());
  PyObject* keywords =
      status == 0 ? nullptr : Py_BuildValue("{s:L}", "status", static_cast<long long>(status));
  const bool whole = arguments != nullptr && (status == 0 || keywords != nullptr);
  PyObject* error = whole ? PyObject_Call(type, arguments, keywords) : nullptr;
  Py_XDECREF(keywords);
  Py_XDECREF(arguments);
  Py_DECREF(type);
  return error;
}

}  // namespace bringup
