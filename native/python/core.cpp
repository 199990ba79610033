// bringup._native._core: the kernel table, the error slot and the engine for Python. No torch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <mutex>

#include "python/engine_graph.h"
#include "python/engine_match.h"
#include "python/engine_passes.h"
#include "python/engine_registry.h"
#include "python/engine_rewrite.h"
#include "python/engine_run.h"
#include "python/host_call.h"
#include "python/language.h"
#include "runtime/call_record.h"
#include "runtime/error_slot.h"
#include "runtime/kernel_table.h"

namespace nb = nanobind;
namespace rt = bringup::runtime;

namespace {

rt::KernelId load_kernel(const std::string& path, const std::string& entry, bool device_code) {
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
  bringup::python::bind_passes(module);
  bringup::python::bind_rewriting(module);
  bringup::python::bind_running(module);
}

// What binds the names that who only loads kernels has no use for: they take longer than all the
// rest of the module, so they come when one of them is asked for.
constexpr void (*kLate[])(nb::module_&) = {bringup::python::bind_language, bind_engine};

nb::object late_name(const nb::module_& module, const std::string& name) {
  static std::recursive_mutex binding;  // what is bound asks for names too
  static size_t bound = 0;
  {
    const nb::gil_scoped_release released;  // whoever binds may need it
    binding.lock();
  }
  const std::lock_guard held(binding, std::adopt_lock);
  const auto names = nb::borrow<nb::dict>(PyModule_GetDict(module.ptr()));
  while (!name.starts_with("__") && !names.contains(name.c_str()) && bound < std::size(kLate)) {
    nb::module_ core = module;
    kLate[bound++](core);
  }
  if (names.contains(name.c_str())) return names[name.c_str()];
  throw nb::attribute_error(
      ("module 'bringup._native._core' has no attribute '" + name + "'").c_str());
}

}  // namespace

NB_MODULE(_core, module) {
  // Operators are kept for the life of the process, and with them whatever their modules hold.
  nb::set_leak_warnings(false);
  module.attr("kernel_abi") = BRINGUP_KERNEL_ABI;
  module.def(
      "load_kernel", &load_kernel, nb::arg("path"), nb::arg("entry"),
      nb::arg("device_code") = false, nb::call_guard<nb::gil_scoped_release>(),
      "Loads `entry` of the shared library at `path` into the kernel table and returns its id.");
  module.def(
      "kernel_address",
      [](rt::KernelId id) {
        return reinterpret_cast<uintptr_t>(rt::KernelTable::instance().get(id)->run);
      },
      nb::arg("id"));
  module.def(
      "release_kernel", [](rt::KernelId id) { return rt::KernelTable::instance().release(id); },
      nb::arg("id"), nb::call_guard<nb::gil_scoped_release>());
  module.def(
      "release_unused_kernel",
      [](rt::KernelId id) { return rt::KernelTable::instance().release_unused(id); }, nb::arg("id"),
      nb::call_guard<nb::gil_scoped_release>(),
      "Closes the library of kernel `id` if nothing else holds it; False when something does.");
  module.def("recall_call", &recall_call, nb::arg("path"), nb::arg("proved") = "",
             "(key, digest) of the build that the call record at `path` names, if all that it "
             "depends on is as it was; else None.");
  bringup::python::bind_host_call(module);
  module.def("take_last_error", &rt::take_last_error);
  module.def("__getattr__", [owner = nb::handle(module)](const std::string& name) {
    return late_name(nb::borrow<nb::module_>(owner), name);
  });
}
