// bringup._native._core: the kernel table and the error slot for Python. No torch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

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
nb::object recall_call(const nb::bytes& path, bool again) {
  const std::string file(path.c_str(), path.size());
  std::optional<rt::RecordedBuild> build;
  {
    const nb::gil_scoped_release released;
    build = rt::recall_call(file, again);
  }
  if (!build) return nb::none();
  return nb::make_tuple(build->key, build->digest);
}

}  // namespace

NB_MODULE(_core, module) {
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
  module.def("recall_call", &recall_call, nb::arg("path"), nb::arg("again") = false,
             "(key, digest) of the build that the call record at `path` names, if all that it "
             "depends on is as it was; else None.");
  module.def("take_last_error", &rt::take_last_error);
}
