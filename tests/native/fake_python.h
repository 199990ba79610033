// A Python for the tests of the bridge, which finds CPython's functions by name in the process:
// these are the ones, exported by the test program. It has objects with counts and a lock, and
// fails the test when a function is called without that lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"

namespace fake_python {

struct Object {
  std::string text;
  double number = 0;
  std::vector<Object*> items;
  long references = 1;
};

struct State {
  std::atomic<bool> is_initialized{false};
  std::atomic<int> begun{0}, finalized{0}, waiting{0};
  std::atomic<long> alive{0};
  // The lock: its owner may take it again.
  std::mutex mutex;
  std::condition_variable is_free;
  std::thread::id owner;
  int depth = 0;
  // With the lock.
  std::vector<std::string> calls;  // module, function and texts
  std::string raises;              // what the next call of a function raises; "" nothing
  Object* error = nullptr;
  std::vector<std::string> missing;  // modules that are not there
};

inline State& state() {
  static State one;
  return one;
}

inline void take() {
  State& python = state();
  std::unique_lock lock(python.mutex);
  if (python.owner == std::this_thread::get_id()) {
    ++python.depth;
    return;
  }
  ++python.waiting;
  python.is_free.wait(lock, [&] { return python.owner == std::thread::id(); });
  --python.waiting;
  python.owner = std::this_thread::get_id();
  python.depth = 1;
}

inline void give() {
  State& python = state();
  const std::lock_guard lock(python.mutex);
  if (--python.depth > 0) return;
  python.owner = std::thread::id();
  python.is_free.notify_one();
}

// The state, for a function that needs the lock.
inline State& locked(const char* function) {
  State& python = state();
  const std::lock_guard lock(python.mutex);
  if (python.owner != std::this_thread::get_id()) {
    check::fail(__FILE__, __LINE__, std::string(function) + " was called without the lock");
  }
  return python;
}

inline Object* made(const std::string& text, double number = 0) {
  ++state().alive;
  return new Object{text, number, {}, 1};
}

inline void release(Object* object) {
  if (object == nullptr || --object->references > 0) return;
  for (Object* item : object->items) release(item);
  delete object;
  --state().alive;
}

inline Object* raised(State& python, const std::string& text) {
  release(python.error);
  python.error = made(text);
  return nullptr;
}

inline Object* called(State& python, const Object& function, const Object& arguments) {
  std::string call = function.text;
  for (const Object* item : arguments.items) call += " " + item->text;
  python.calls.push_back(call);
  if (python.raises.empty()) return made("number", 7);
  const std::string text = std::exchange(python.raises, "");
  return raised(python, text);
}

}  // namespace fake_python

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE int Py_IsInitialized() { return fake_python::state().is_initialized ? 1 : 0; }
FAKE const char* Py_GetVersion() { return "3.11.99 (fake)"; }
FAKE wchar_t* Py_DecodeLocale(const char*, size_t*) { return nullptr; }
FAKE void PyMem_RawFree(void*) {}
FAKE void Py_InitializeEx(int) {
  fake_python::take();
  ++fake_python::state().begun;
  fake_python::state().is_initialized = true;
}
FAKE int Py_FinalizeEx() {
  fake_python::State& python = fake_python::locked("Py_FinalizeEx");
  ++python.finalized;
  python.is_initialized = false;
  fake_python::give();
  return 0;
}
FAKE void* PyEval_SaveThread() {
  fake_python::give();
  return &fake_python::state();
}
FAKE void* PyThreadState_Get() {
  fake_python::locked("PyThreadState_Get");
  return nullptr;  // never that of the thread that began
}
FAKE void PyThreadState_Clear(void*) { fake_python::locked("PyThreadState_Clear"); }
FAKE void PyThreadState_Delete(void*) { fake_python::locked("PyThreadState_Delete"); }
FAKE int PyGILState_Ensure() {
  fake_python::take();
  return 0;
}
FAKE void PyGILState_Release(int) { fake_python::give(); }
FAKE fake_python::Object* PyImport_ImportModule(const char* name) {
  fake_python::State& python = fake_python::locked("PyImport_ImportModule");
  for (const std::string& missing : python.missing) {
    if (missing == name) return fake_python::raised(python, "no module " + missing);
  }
  return fake_python::made(name);
}
FAKE fake_python::Object* PyObject_GetAttrString(fake_python::Object* object, const char* name) {
  fake_python::locked("PyObject_GetAttrString");
  return fake_python::made(object->text + "." + name);
}
FAKE fake_python::Object* PyObject_CallObject(fake_python::Object* function,
                                              fake_python::Object* arguments) {
  return fake_python::called(fake_python::locked("PyObject_CallObject"), *function, *arguments);
}
FAKE fake_python::Object* PyTuple_New(ptrdiff_t size) {
  fake_python::locked("PyTuple_New");
  fake_python::Object* tuple = fake_python::made("tuple");
  tuple->items.resize(static_cast<size_t>(size));
  return tuple;
}
FAKE int PyTuple_SetItem(fake_python::Object* tuple, ptrdiff_t index, fake_python::Object* item) {
  fake_python::locked("PyTuple_SetItem");
  tuple->items[static_cast<size_t>(index)] = item;
  return 0;
}
FAKE fake_python::Object* PyBytes_FromStringAndSize(const char* text, ptrdiff_t size) {
  fake_python::locked("PyBytes_FromStringAndSize");
  return fake_python::made(std::string(text, static_cast<size_t>(size)));
}
FAKE fake_python::Object* PyUnicode_DecodeFSDefault(const char* text) {
  fake_python::locked("PyUnicode_DecodeFSDefault");
  return fake_python::made(text);
}
FAKE fake_python::Object* PyObject_Str(fake_python::Object* object) {
  fake_python::locked("PyObject_Str");
  return fake_python::made(object->text);
}
FAKE fake_python::Object* PyFloat_FromDouble(double number) {
  fake_python::locked("PyFloat_FromDouble");
  return fake_python::made("number", number);
}
FAKE long PyLong_AsLong(fake_python::Object* object) {
  fake_python::locked("PyLong_AsLong");
  return static_cast<long>(object->number);
}
FAKE fake_python::Object* PyUnicode_AsUTF8String(fake_python::Object* text) {
  fake_python::locked("PyUnicode_AsUTF8String");
  return fake_python::made(text->text);
}
FAKE char* PyBytes_AsString(fake_python::Object* bytes) {
  fake_python::locked("PyBytes_AsString");
  return bytes->text.data();
}
FAKE void Py_DecRef(fake_python::Object* object) {
  fake_python::locked("Py_DecRef");
  fake_python::release(object);
}
FAKE fake_python::Object* PyErr_Occurred() { return fake_python::locked("PyErr_Occurred").error; }
FAKE void PyErr_Fetch(fake_python::Object** type, fake_python::Object** value,
                      fake_python::Object** trace) {
  *type = *trace = nullptr;
  *value = std::exchange(fake_python::locked("PyErr_Fetch").error, nullptr);
}
FAKE void PyErr_NormalizeException(fake_python::Object**, fake_python::Object**,
                                   fake_python::Object**) {
  fake_python::locked("PyErr_NormalizeException");
}
FAKE ptrdiff_t PyGC_Collect() {
  fake_python::locked("PyGC_Collect");
  return 0;
}

#undef FAKE
