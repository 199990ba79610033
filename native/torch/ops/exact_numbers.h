// Python's numbers as the native calls take them: of exactly these types, and without loss. False:
// the slow path converts or refuses. No Python exception is set.
#pragma once

#include <Python.h>

#include <cstdint>

namespace bringup::torch_ext {

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

}  // namespace bringup::torch_ext
