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
#include "runtime/c_function.h"
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

// (op, argument, value)
using StepFields = std::tuple<uint8_t, int32_t, int64_t>;
// (text, kind, by reference, (lowest, highest) or nothing, optional, program, texts)
using ParameterFields = std::tuple<std::string, uint8_t, bool, std::vector<int64_t>, bool,
                                   std::vector<StepFields>, std::vector<std::string>>;

rt::CParameter c_parameter(const ParameterFields& spec) {
  const auto& [text, kind, by_reference, range, optional, program, texts] = spec;
  rt::CParameter parameter;
  parameter.text = text;
  parameter.kind = static_cast<rt::CParameter::Kind>(kind);
  parameter.by_reference = by_reference;
  parameter.bounded = range.size() == 2;
  if (parameter.bounded) {
    parameter.lowest = range[0];
    parameter.highest = range[1];
  }
  parameter.optional = optional;
  for (const auto& [op, argument, value] : program) {
    parameter.program.push_back({static_cast<rt::CStep::Op>(op), argument, value});
  }
  parameter.texts = texts;
  return parameter;
}

rt::KernelId bind_c_function(const std::string& path, const std::string& symbol, uint8_t convention,
                             const std::vector<ParameterFields>& parameters) {
  std::vector<rt::CParameter> bound;
  for (const ParameterFields& spec : parameters) bound.push_back(c_parameter(spec));
  return rt::bind_c_function(path, symbol, static_cast<rt::CConvention>(convention),
                             std::move(bound));
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

// The engine's names are bound when the first of them is asked for: who only loads kernels has no
// use for them, and they take longer than all the rest of the module.
nb::object engine_name(const nb::module_& module, const std::string& name) {
  static std::recursive_mutex binding;  // what is bound asks for names too
  static bool bound = false;
  {
    const nb::gil_scoped_release released;  // whoever binds may need it
    binding.lock();
  }
  const std::lock_guard held(binding, std::adopt_lock);
  if (!bound && !name.starts_with("__")) {
    bound = true;
    nb::module_ core = module;
    bringup::python::bind_graph(core);
    bringup::python::bind_matching(core);
    bringup::python::bind_registry(core);
    bringup::python::bind_passes(core);
    bringup::python::bind_rewriting(core);
    bringup::python::bind_running(core);
  }
  const nb::object names = nb::borrow(PyModule_GetDict(module.ptr()));
  if (nb::cast<nb::dict>(names).contains(name.c_str())) return names[name.c_str()];
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
  module.def("bind_c_function", &bind_c_function, nb::arg("path"), nb::arg("symbol"),
             nb::arg("convention"), nb::arg("parameters"), nb::call_guard<nb::gil_scoped_release>(),
             "Loads the library at `path`, binds its function `symbol` to what the parameters say, "
             "puts it into the kernel table and returns its id.");
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
    return engine_name(nb::borrow<nb::module_>(owner), name);
  });
}
