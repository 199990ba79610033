// bringup._native._core: the kernel table, the error slot and the engine for Python. No torch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <mutex>

#include "python/bindings.h"
#include "runtime/call_record.h"
#include "runtime/kernel_table.h"

namespace nb = nanobind;
namespace rt = bringup::runtime;

namespace {

rt::KernelId load_kernel(const std::string& path, const std::string& entry, bool device_code,
                         bool opens) {
  if (device_code && !opens) return rt::keep_device_code(path, entry);
  return rt::load_kernel(path, entry,
                         device_code ? rt::KernelKind::kDeviceCode : rt::KernelKind::kHostEntry);
}

// (key, digest) of the build, or None. The path is bytes: not every one is UTF-8.
nb::object recall_call(const nb::bytes& path, const std::string& proved) {
  const std::string file(path.c_str(), path.size());
  std::optional<rt::RecordedBuild> build;
  {
    const nb::gil_scoped_release released;
    build = rt::recall_call(file, proved);
  }
  if (!build) return nb::none();
  return nb::make_tuple(build->key, build->digest);
}

void bind_engine(nb::module_& module) {
  bringup::python::bind_graph(module);
  bringup::python::bind_matching(module);
  bringup::python::bind_registry(module);
  bringup::python::bind_rewriting(module);
  bringup::python::bind_running(module);
  bringup::python::bind_hosted(module);
}

// Binds, when one is asked for, the names that loading kernels does not need: they take longest.
constexpr void (*kLate[])(nb::module_&) = {bringup::python::bind_language, bind_engine};

// Binds until the module has the name; not while binding, when nanobind asks for what it defines.
void bind_until_known(nb::module_& module, PyObject* names, PyObject* name) {
  static std::recursive_mutex binding;
  static size_t bound = 0;
  static bool is_binding = false;
  {
    const nb::gil_scoped_release released;  // a thread that binds may need it
    binding.lock();
  }
  const std::lock_guard held(binding, std::adopt_lock);
  while (!is_binding && PyDict_Contains(names, name) == 0 && bound < std::size(kLate)) {
    is_binding = true;
    kLate[bound++](module);
    is_binding = false;
  }
}

// The module's __getattr__. A function of C: nothing throws where a name is merely missing.
PyObject* late_name(PyObject* self, PyObject* name) {
  PyObject* names = PyModule_GetDict(self);
  const char* text = PyUnicode_AsUTF8(name);
  if (text == nullptr) return nullptr;
  if (std::strncmp(text, "__", 2) != 0) {
    auto module = nb::borrow<nb::module_>(self);
    bind_until_known(module, names, name);
  }
  PyObject* found = PyDict_GetItemWithError(names, name);
  if (found == nullptr && PyErr_Occurred() == nullptr) {
    PyErr_Format(PyExc_AttributeError, "module 'bringup._native._core' has no attribute '%U'",
                 name);
  }
  Py_XINCREF(found);
  return found;
}

PyMethodDef late_names[] = {{"__getattr__", late_name, METH_O, nullptr}, {}};

}  // namespace

NB_MODULE(_core, module) {
  // Operators are kept for the life of the process, and with them whatever their modules hold.
  nb::set_leak_warnings(false);
  const std::string mismatch = bringup::python::engine_mismatch();
  if (!mismatch.empty()) throw nb::import_error(mismatch.c_str());
  module.attr("kernel_abi") = BRINGUP_KERNEL_ABI;
  module.def(
      "load_kernel", &load_kernel, nb::arg("path"), nb::arg("entry"),
      nb::arg("device_code") = false, nb::arg("opens") = true,
      nb::call_guard<nb::gil_scoped_release>(),
      "Loads `entry` of the shared library at `path` into the kernel table and returns its id; "
      "with `opens=False` device code of a file that only a driver can read.");
  module.def("kernel_address", [](rt::KernelId id) {
    return reinterpret_cast<uintptr_t>(rt::KernelTable::instance().get(id)->run);
  });
  module.def(
      "release_kernel", [](rt::KernelId id) { return rt::KernelTable::instance().release(id); },
      nb::call_guard<nb::gil_scoped_release>());
  module.def(
      "release_unused_kernel",
      [](rt::KernelId id) { return rt::KernelTable::instance().release_unused(id); },
      nb::call_guard<nb::gil_scoped_release>(),
      "Closes the library of kernel `id` if nothing else holds it; False when something does.");
  module.def("recall_call", &recall_call, nb::arg("path"), nb::arg("proved") = "",
             "(key, digest) of the build that the call record at `path` names, if all that it "
             "depends on is as it was; else None.");
  if (PyModule_AddFunctions(module.ptr(), late_names) != 0) throw nb::python_error();
}
