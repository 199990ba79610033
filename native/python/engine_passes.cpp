// Passes of C and C++ libraries for bringup.passes: their hooks, called by the sessions of Python.
#include "engine_passes.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "engine/capi/handles.h"
#include "engine/capi/plugin_loader.h"
#include "engine/graph/providers.h"
#include "engine/run/creation.h"
#include "engine/run/pass.h"
#include "engine/run/session.h"
#include "engine/run/status.h"
#include "engine_copier.h"
#include "engine_handles.h"
#include "engine_imported.h"
#include "engine_match.h"
#include "engine_registry.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

std::string text_of(en::StringId id) { return std::string(en::Strings::text(id)); }

// Raises an exception of bringup.errors.
[[noreturn]] void raise(ErrorClass kind, const char* message, int64_t status = 0) {
  const Ref error(new_error(kind, message, status));
  if (error) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
  throw nb::python_error();
}

// Runs code of a library without the GIL; what it throws becomes a Python exception.
template <class Work>
auto call_hook(Work&& work) {
  try {
    const nb::gil_scoped_release released;
    return work();
  } catch (const en::SkipPass& skip) {
    raise(ErrorClass::kPassSkip, skip.what());
  } catch (const en::FatalFailure& failure) {
    raise(ErrorClass::kPassFatal, failure.what(), BRINGUP_ENGINE_FATAL);
  } catch (const en::StatusError& failure) {
    raise(ErrorClass::kPass, failure.what(), failure.status());
  } catch (const en::EngineError& error) {
    raise(ErrorClass::kPass, error.what(), en::status_of(error.code()));
  }
}

// What the engine asks while a library edits a graph of Python: `answers` gives it.
class Answers {
  // Calls Python with the GIL; an exception becomes an error of the engine with its text.
  template <class Work>
  static auto ask(Work&& work) {
    const nb::gil_scoped_acquire acquired;
    try {
      return work();
    } catch (const PythonError&) {
      nb::python_error error;
      throw en::EngineError(en::ErrorCode::kFailed, last_line(error.what()));
    } catch (const nb::python_error& error) {
      throw en::EngineError(en::ErrorCode::kFailed, last_line(error.what()));
    }
  }

  // The text of the exception without its traceback.
  static std::string last_line(std::string text) {
    while (!text.empty() && text.back() == '\n') text.pop_back();
    const size_t start = text.rfind('\n');
    return start == std::string::npos ? text : text.substr(start + 1);
  }

 public:
  Answers(GraphCore& core, nb::object answers) : core_(core), answers_(std::move(answers)) {
    providers_.only_rewritten = true;
    providers_.schema = [this](const en::Graph&, en::StringId type, en::ArgumentList& arguments) {
      return bind(type, arguments);
    };
    providers_.infer_shape = [this](en::Graph&, en::NodeId node) {
      ask([&] { answers_.attr("infer")(take(node_handle(core_, node))); });
    };
    providers_.supports = [this](const en::Graph&, en::NodeId node) { return supports(node); };
    providers_.constant_made = [this](en::Graph&, en::NodeId node, const en::ConstantData& data) {
      make_constant(node, data);
    };
    providers_.copy = [this](en::Graph&, const en::CopiedNode& copied) { return copy(copied); };
    providers_.difference = [this](const en::Graph&, en::ValueId old, en::ValueId now) {
      return ask([&] { return copier_.difference(old, now); });
    };
    providers_.stays = [this](en::Graph&, en::ValueId old, en::ValueId now) {
      ask([&] { copier_.stays(old, now); });
    };
    if (ask([&] { return copier_.can_copy_values(); })) {
      providers_.copy_of = [this](en::Graph&, en::ValueId value, en::NodeId before) {
        return ask([&] { return copier_.copy_of(value, before); });
      };
    }
  }

  const en::Providers& providers() const { return providers_; }

 private:
  const en::Operator* bind(en::StringId type, en::ArgumentList& arguments) {
    return ask([&] {
      const Ref given = python_arguments(core_, arguments.items(), arguments.count());
      const nb::tuple bound(answers_.attr("bind")(text_of(type), nb::borrow(given.get())));
      arguments.clear();
      convert_all(core_, nb::object(bound[1]).ptr(), arguments);
      return operator_of(nb::object(bound[0]).ptr());
    });
  }

  std::optional<std::string> supports(en::NodeId node) {
    return ask([&]() -> std::optional<std::string> {
      const nb::tuple answer(answers_.attr("supports")(take(node_handle(core_, node))));
      if (nb::cast<bool>(answer[0])) return std::nullopt;
      return nb::cast<std::string>(answer[1]);
    });
  }

  void make_constant(en::NodeId node, const en::ConstantData& data);

  en::NodeId copy(const en::CopiedNode& copied) {
    if (copied.op != en::Operators::constant()) return ask([&] { return copier_.copy(copied); });
    const en::NodeId node = core_.graph.add_constant(copied.replacement.name(copied.original));
    const en::ConstantData* data = copied.replacement.payload(copied.original);
    if (data != nullptr) make_constant(node, *data);
    return node;
  }

  GraphCore& core_;
  nb::object answers_;
  Copier copier_{core_, nullptr};
  en::Providers providers_;
};

void Answers::make_constant(en::NodeId node, const en::ConstantData& data) {
  ask([&] { answers_.attr("constant")(take(node_handle(core_, node)), constant_fields(data)); });
}

en::Options options_of(nb::dict given) {
  en::Options options;
  for (auto [key, value] : given) {
    const std::string name = nb::cast<std::string>(nb::str(key));
    if (nb::isinstance<nb::bool_>(value)) {
      options[name] = nb::cast<bool>(value);
    } else if (nb::isinstance<nb::int_>(value)) {
      int64_t number = 0;
      if (nb::try_cast(value, number)) options[name] = number;
    } else if (nb::isinstance<nb::float_>(value)) {
      options[name] = nb::cast<double>(value);
    } else if (nb::isinstance<nb::str>(value)) {
      options[name] = nb::cast<std::string>(value);
    } else if (value.is_none()) {
      options[name] = std::monostate();
    }
  }
  return options;
}

// One instance of a pass, for one session.
class NativeInstance {
 public:
  NativeInstance(const PassRegistration& given, uint64_t instance_id)
      : registration_(given.registration),
        context_{registration_->descriptor, instance_id, options_, no_providers_, ""} {
    instance_ = call_hook([&] { return en::make_instance(*registration_); });
  }

  ~NativeInstance() {
    const nb::gil_scoped_release released;
    instance_.reset();
  }

  // What hooks may read from here on.
  void set_options(nb::dict given) { options_ = options_of(std::move(given)); }

  int64_t run(GraphCore& core, nb::object host) {
    const Answers answers(core, std::move(host));
    en::PassContext context = context_of(answers);
    return call_hook([&] { return instance_->run(core.graph, context); });
  }

  // Patterns of Python: what its dialect makes of those of the library.
  nb::list patterns(nb::handle host) {
    en::Graph none("none");
    const std::vector<en::PatternPtr> made =
        call_hook([&] { return instance_->patterns(none, context_); });
    nb::list imported;
    for (const en::PatternPtr& pattern : made) imported.append(imported_pattern(*pattern, host));
    return imported;
  }

  bool meet_match(GraphCore& core, nb::object host, nb::handle matcher) {
    const Answers answers(core, std::move(host));
    const en::Match& match = match_of(matcher);
    en::PassContext context = context_of(answers);
    return call_hook([&] { return instance_->meet_requirements(match, context); });
  }

  nb::object replace_match(GraphCore& core, nb::object host, nb::handle matcher) {
    const Answers answers(core, host);
    const en::Match& match = match_of(matcher);
    en::PassContext context = context_of(answers);
    const en::GraphPtr made = call_hook([&] { return instance_->replacement(match, context); });
    return imported_graph(*made, core, host);
  }

  bool meet_node(GraphCore& core, nb::object host, nb::handle node) {
    const Answers answers(core, std::move(host));
    const en::NodeId id = node_of(core, node);
    en::PassContext context = context_of(answers);
    return call_hook([&] { return instance_->meet_requirements(core.graph, id, context); });
  }

  nb::object replace_node(GraphCore& core, nb::object host, nb::handle node) {
    const Answers answers(core, host);
    const en::NodeId id = node_of(core, node);
    en::PassContext context = context_of(answers);
    const en::GraphPtr made =
        call_hook([&] { return instance_->replacement(core.graph, id, context); });
    return imported_graph(*made, core, host);
  }

 private:
  en::PassContext context_of(const Answers& answers) const {
    return {registration_->descriptor, context_.instance_id, options_, answers.providers(), ""};
  }

  en::RegistrationPtr registration_;
  en::Options options_;
  en::Providers no_providers_;
  en::PassContext context_;
  std::unique_ptr<en::Pass> instance_;
};

nb::list load_library(const std::string& path) {
  std::vector<en::RegistrationPtr> passes;
  {
    const nb::gil_scoped_release released;
    passes = en::PluginLoader::instance().load(path);
  }
  return as_list(std::move(passes));
}

}  // namespace

void bind_passes(nb::module_& module) {
  nb::class_<NativeInstance>(module, "NativeInstance")
      .def(nb::init<const PassRegistration&, uint64_t>())
      .def("set_options", &NativeInstance::set_options)
      .def("run", &NativeInstance::run)
      .def("patterns", &NativeInstance::patterns)
      .def("meet_match", &NativeInstance::meet_match)
      .def("replace_match", &NativeInstance::replace_match)
      .def("meet_node", &NativeInstance::meet_node)
      .def("replace_node", &NativeInstance::replace_node);
  module.def("load_pass_library", &load_library, nb::arg("path"),
             "Loads a library with passes once, whole or not at all; its registrations.");
  module.def(
      "unload_pass_library",
      [](const std::string& path) { return en::PluginLoader::instance().unload(path); },
      nb::arg("path"), nb::call_guard<nb::gil_scoped_release>(),
      "Forgets its passes; it is closed when nothing uses it any more.");
}

}  // namespace bringup::python
