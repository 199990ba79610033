#include "bridge/python_api.h"

#include <dlfcn.h>

#include <mutex>
#include <type_traits>

#include "bridge/error.h"

namespace bringup::bridge {
namespace {

template <class Function>
bool look_up(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

// The name that is missing, or null.
const char* fill(PythonApi& api) {
  look_up(api.set_program, "Py_SetProgramName");
#define BRINGUP_FIND(member, name) \
  if (!look_up(api.member, name)) return name;
  BRINGUP_FIND(is_initialized, "Py_IsInitialized")
  BRINGUP_FIND(version, "Py_GetVersion")
  BRINGUP_FIND(initialize, "Py_InitializeEx")
  BRINGUP_FIND(finalize, "Py_FinalizeEx")
  BRINGUP_FIND(decode, "Py_DecodeLocale")
  BRINGUP_FIND(free_text, "PyMem_RawFree")
  BRINGUP_FIND(save_thread, "PyEval_SaveThread")
  BRINGUP_FIND(thread_state, "PyThreadState_Get")
  BRINGUP_FIND(clear_thread, "PyThreadState_Clear")
  BRINGUP_FIND(delete_thread, "PyThreadState_Delete")
  BRINGUP_FIND(ensure, "PyGILState_Ensure")
  BRINGUP_FIND(release, "PyGILState_Release")
  BRINGUP_FIND(import, "PyImport_ImportModule")
  BRINGUP_FIND(attribute, "PyObject_GetAttrString")
  BRINGUP_FIND(call, "PyObject_CallObject")
  BRINGUP_FIND(new_tuple, "PyTuple_New")
  BRINGUP_FIND(set_item, "PyTuple_SetItem")
  BRINGUP_FIND(new_bytes, "PyBytes_FromStringAndSize")
  BRINGUP_FIND(new_path, "PyUnicode_DecodeFSDefault")
  BRINGUP_FIND(text, "PyObject_Str")
  BRINGUP_FIND(new_float, "PyFloat_FromDouble")
  BRINGUP_FIND(as_long, "PyLong_AsLong")
  BRINGUP_FIND(as_utf8, "PyUnicode_AsUTF8String")
  BRINGUP_FIND(bytes, "PyBytes_AsString")
  BRINGUP_FIND(release_object, "Py_DecRef")
  BRINGUP_FIND(error, "PyErr_Occurred")
  BRINGUP_FIND(fetch, "PyErr_Fetch")
  BRINGUP_FIND(normalize, "PyErr_NormalizeException")
  BRINGUP_FIND(collect, "PyGC_Collect")
#undef BRINGUP_FIND
  return nullptr;
}

// All without destructors: threads may outlive those.
constinit std::mutex lookup_mutex;
constinit PythonApi found = {};
constinit bool is_found = false;
static_assert(std::is_trivially_destructible_v<std::mutex>);

}  // namespace

const PythonApi* python_of_process() {
  const std::lock_guard lock(lookup_mutex);
  if (!is_found) is_found = fill(found) == nullptr;
  return is_found ? &found : nullptr;
}

const PythonApi& open_python(const PythonPlace& place) {
  // Never closed: CPython cannot be unmapped.
  if (dlopen(place.library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const char* said = dlerror();
    const std::string reason = said != nullptr ? said : "no reason is known";
    if (place.is_named) throw BridgeError{"the Python library cannot be loaded: " + reason};
    throw BridgeError{
        "there is no shared Python library: " + place.looked + ", and the loader says: " + reason +
        "; name one in bringup_python_options.python_library (bringupc: "
        "--python-library FILE), or install it (Debian: apt-get install libpython3.X; "
        "pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared)"};
  }
  const std::lock_guard lock(lookup_mutex);
  const char* missing = fill(found);
  is_found = missing == nullptr;
  if (!is_found) {
    throw BridgeError{place.library + " is no Python 3.10 or later: it lacks " + missing};
  }
  return found;
}

}  // namespace bringup::bridge
