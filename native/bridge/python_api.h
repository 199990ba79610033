// The part of CPython's C API that the bridge calls, found by name in the process: a library with
// undefined Python symbols could not be opened before an interpreter is there. All of it means the
// same from 3.10 on: the stable ABI, and PyMem_RawFree.
#pragma once

#include <cstddef>
#include <string>

#include "bridge/python_place.h"

namespace bringup::bridge {

struct PyObject;
struct PyThreadState;

struct PythonApi {
  int (*is_initialized)();
  const char* (*version)();
  void (*initialize)(int signals);
  int (*finalize)();
  void (*set_program)(const wchar_t* path);  // null where Python has it no more (3.15)
  wchar_t* (*decode)(const char* text, size_t* size);
  void (*free_text)(void* decoded);
  PyThreadState* (*save_thread)();
  PyThreadState* (*thread_state)();
  void (*clear_thread)(PyThreadState* state);
  void (*delete_thread)(PyThreadState* state);
  int (*ensure)();
  void (*release)(int state);
  PyObject* (*import)(const char* name);
  PyObject* (*attribute)(PyObject* object, const char* name);
  PyObject* (*call)(PyObject* callable, PyObject* arguments);
  PyObject* (*new_tuple)(ptrdiff_t size);
  int (*set_item)(PyObject* tuple, ptrdiff_t index, PyObject* item);  // takes the reference
  PyObject* (*new_bytes)(const char* text, ptrdiff_t size);
  PyObject* (*new_path)(const char* text);  // a str
  PyObject* (*text)(PyObject* object);      // a str
  PyObject* (*new_float)(double number);
  long (*as_long)(PyObject* object);
  PyObject* (*as_utf8)(PyObject* text);  // bytes
  char* (*bytes)(PyObject* bytes);
  void (*release_object)(PyObject* object);
  PyObject* (*error)();
  void (*fetch)(PyObject** type, PyObject** value, PyObject** traceback);
  void (*normalize)(PyObject** type, PyObject** value, PyObject** traceback);
  ptrdiff_t (*collect)();
};

// The process's Python without opening anything; null where it has none.
const PythonApi* python_of_process();
// That of a library, which is opened with its symbols global: extension modules do not link
// libpython. Throws BridgeError.
const PythonApi& open_python(const PythonPlace& place);

}  // namespace bringup::bridge
