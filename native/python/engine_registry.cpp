#include "engine_registry.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "engine/capi/plugin_loader.h"
#include "engine/run/registry.h"
#include "engine/util/error.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

namespace en = bringup::engine;

std::unique_ptr<en::Pass> create_python_pass() {
  const nb::gil_scoped_acquire acquired;
  auto* const pass_class = static_cast<PyObject*>(en::creating().definition.get());
  return std::make_unique<PythonPass>(nb::borrow(pass_class)());
}

// Keeps a class; it may be dropped without the GIL.
std::shared_ptr<void> kept(nb::object pass_class) {
  return {pass_class.release().ptr(), [](void* object) {
            if (!Py_IsInitialized()) return;
            const nb::gil_scoped_acquire acquired;
            Py_DECREF(static_cast<PyObject*>(object));
          }};
}

std::string text(nb::handle object) { return nb::cast<std::string>(object); }

std::vector<std::string> texts(nb::handle names) {
  std::vector<std::string> all;
  for (nb::handle name : names) all.push_back(text(name));
  return all;
}

template <class Number>
Number number(const std::string& name, const char* field, nb::handle given) {
  Number number = 0;
  if (nb::try_cast(given, number)) return number;
  en::throw_error(en::ErrorCode::kInvalid, "pass ", en::in_quotes(name), ": ", field,
                  " is out of range: ", text(nb::str(given)));
}

// The fields of its PassDescriptor but for the class.
nb::dict describe(const PassRegistration& self) {
  const en::PassDescriptor& descriptor = self.registration->descriptor;
  nb::dict all;
  all["pass_name"] = descriptor.pass_name;
  all["kind"] = std::string(en::name_of(descriptor.kind));
  all["stage"] = std::string(en::name_of(descriptor.stage));
  all["priority"] = descriptor.priority;
  all["module_name"] = descriptor.module_name;
  all["class_qualname"] = descriptor.class_qualname;
  all["op_types"] = nb::tuple(nb::cast(descriptor.op_types));
  all["version"] = descriptor.version;
  all["requires"] = nb::tuple(nb::cast(descriptor.requires_all));
  all["after"] = nb::tuple(nb::cast(descriptor.after));
  all["max_rewrites"] =
      descriptor.max_rewrites != 0 ? nb::cast(descriptor.max_rewrites) : nb::none();
  all["repeat_until_stable"] = descriptor.repeat_until_stable;
  all["on_error"] = std::string(en::name_of(descriptor.policy));
  all["source_digest"] = descriptor.digest;
  return all;
}

// None of a pass that is not written in Python.
nb::object pass_class(const PassRegistration& self) {
  if (!self.registration->of_host) return nb::none();
  return nb::borrow(static_cast<PyObject*>(self.registration->definition.get()));
}

// Passes that are registered in a with block: visible all at once after `commit`, or not at all.
class PassBatch {
 public:
  PassBatch& enter() {
    batch_ = std::make_unique<en::Batch>(en::Registry::instance());
    return *this;
  }
  nb::list commit() {
    if (batch_ == nullptr) en::throw_error(en::ErrorCode::kBusy, "the batch is not open");
    return as_list(batch_->commit());
  }
  void exit(const nb::args&) { batch_.reset(); }

 private:
  std::unique_ptr<en::Batch> batch_;
};

nb::object or_none(en::RegistrationPtr registration) {
  if (registration == nullptr) return nb::none();
  return nb::cast(PassRegistration{std::move(registration)});
}

nb::list select(std::optional<std::vector<std::string>> names,
                const std::map<std::string, std::string>& versions,
                const std::map<std::string, bool>& switches) {
  en::Selection selection;
  selection.names = std::move(names);
  selection.versions = {versions.begin(), versions.end()};
  selection.switches = {switches.begin(), switches.end()};
  selection.on_host_graphs = true;
  return as_list(en::Registry::instance().select(selection));
}

size_t forget(nb::handle registrations) {
  std::vector<en::RegistrationPtr> meant;
  for (nb::handle item : registrations) {
    meant.push_back(nb::cast<PassRegistration&>(item).registration);
  }
  return en::Registry::instance().remove(meant);
}

nb::list load_library(const std::string& path) {
  std::vector<en::RegistrationPtr> passes;
  {
    const nb::gil_scoped_release released;
    passes = en::PluginLoader::instance().load(path);
  }
  return as_list(std::move(passes));
}

}  // namespace

en::PassDescriptor descriptor_of(nb::handle given) {
  en::PassDescriptor descriptor;
  descriptor.pass_name = text(given.attr("pass_name"));
  descriptor.kind = en::kind_named(text(given.attr("kind")));
  descriptor.stage = en::stage_named(text(given.attr("stage").attr("value")));
  descriptor.module_name = text(given.attr("module_name"));
  descriptor.class_qualname = text(given.attr("class_qualname"));
  descriptor.op_types = texts(given.attr("op_types"));
  descriptor.version = text(given.attr("version"));
  descriptor.priority = number<int32_t>(descriptor.pass_name, "priority", given.attr("priority"));
  descriptor.policy = en::policy_named(text(given.attr("on_error").attr("value")));
  const nb::object limit = given.attr("max_rewrites");
  if (!limit.is_none()) {
    descriptor.max_rewrites = number<uint32_t>(descriptor.pass_name, "max_rewrites", limit);
  }
  descriptor.repeat_until_stable = nb::cast<bool>(given.attr("repeat_until_stable"));
  descriptor.requires_all = texts(given.attr("requires"));
  descriptor.after = texts(given.attr("after"));
  descriptor.digest = text(given.attr("source_digest"));
  return descriptor;
}

PassRegistration registration_of(nb::handle given) {
  auto made = std::make_shared<en::Registration>();
  made->descriptor = descriptor_of(given);
  made->create = create_python_pass;
  made->definition = kept(given.attr("pass_class"));
  made->of_host = true;
  return {std::move(made)};
}

nb::list as_list(std::vector<en::RegistrationPtr> registrations) {
  nb::list all;
  for (en::RegistrationPtr& item : registrations) all.append(PassRegistration{std::move(item)});
  return all;
}

void bind_registry(nb::module_& module) {
  nb::class_<PassRegistration>(module, "PassRegistration")
      .def("__init__",
           [](PassRegistration* self, nb::handle given) {
             new (self) PassRegistration(registration_of(given));
           })
      .def("describe", &describe)
      .def_prop_ro("pass_class", &pass_class)
      .def_prop_ro("of_python",
                   [](const PassRegistration& self) { return self.registration->of_host; })
      .def_prop_ro(
          "label",
          [](const PassRegistration& self) { return en::label_of(self.registration->descriptor); })
      .def_prop_ro("address", [](const PassRegistration& self) {
        return reinterpret_cast<uintptr_t>(self.registration.get());
      });
  nb::class_<PassBatch>(module, "PassBatch")
      .def(nb::init<>())
      .def("__enter__", &PassBatch::enter, nb::rv_policy::reference_internal)
      .def("commit", &PassBatch::commit)
      .def("__exit__", &PassBatch::exit);
  module.def("register_pass", [](const PassRegistration& given) {
    return en::Registry::instance().add(given.registration);
  });
  module.def("registered_passes", [] { return as_list(en::Registry::instance().all()); });
  module.def("find_pass", [](const std::string& key, const std::string& version) {
    return or_none(en::Registry::instance().find_by_key(key, version));
  });
  module.def("select_passes", &select, nb::arg().none(), nb::arg(), nb::arg());
  module.def("is_enabled",
             [](const std::string& name, const std::map<std::string, bool>& switches) {
               return en::is_enabled(name, {switches.begin(), switches.end()});
             });
  module.def("remove_passes", [](const std::string& name, const std::string& version) {
    return en::Registry::instance().remove(name, version);
  });
  module.def("forget_passes", &forget);
  module.def("clear_passes", [] { en::Registry::instance().clear(); });
  module.def("version_of",
             [](const std::string& text) { return nb::tuple(nb::cast(en::version_of(text))); });
  module.def("load_pass_library", &load_library,
             "Loads a library with passes once, whole or not at all; its registrations.");
  module.def(
      "unload_pass_library",
      [](const std::string& path) { return en::PluginLoader::instance().unload(path); },
      nb::call_guard<nb::gil_scoped_release>(),
      "Forgets its passes; it is closed when nothing uses it any more.");
}

}  // namespace bringup::python
