// Passes of C and C++ libraries for bringup.passes: their hooks, called by the sessions of Python.
#include "engine_passes.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "engine/creation.h"
#include "engine/handles.h"
#include "engine/match.h"
#include "engine/pass.h"
#include "engine/pattern.h"
#include "engine/plugin_loader.h"
#include "engine/providers.h"
#include "engine/session.h"
#include "engine/status.h"
#include "engine_handles.h"
#include "engine_registry.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

nb::object take(Ref ref) { return nb::steal(ref.release()); }

std::string text_of(en::StringId id) { return std::string(en::Strings::text(id)); }

// Raises an exception of bringup.errors.
[[noreturn]] void raise(const char* kind, const std::string& message, int64_t status = 0) {
  const nb::object type = nb::module_::import_("bringup.errors").attr(kind);
  const nb::object error = status != 0 ? type(message, nb::arg("status") = status) : type(message);
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nb::python_error();
}

// Runs code of a library without the GIL; what it throws becomes a Python exception.
template <class Work>
auto call_hook(Work&& work) {
  try {
    const nb::gil_scoped_release released;
    return work();
  } catch (const en::SkipPass& skip) {
    raise("PassSkipException", skip.what());
  } catch (const en::FatalFailure& failure) {
    raise("PassFatalError", failure.what(), BRINGUP_ENGINE_FATAL);
  } catch (const en::StatusError& failure) {
    raise("PassError", failure.what(), failure.status());
  } catch (const en::EngineError& error) {
    raise("PassError", error.what(), en::status_of(error.code()));
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
    providers_.difference = [this](const en::Graph&, en::ValueId old, en::ValueId now) {
      return difference(old, now);
    };
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

  std::optional<std::string> difference(en::ValueId old, en::ValueId now) {
    return ask([&]() -> std::optional<std::string> {
      const nb::object found = answers_.attr("difference")(take(value_handle(core_, old)),
                                                           take(value_handle(core_, now)));
      if (found.is_none()) return std::nullopt;
      return nb::cast<std::string>(found);
    });
  }

  GraphCore& core_;
  nb::object answers_;
  en::Providers providers_;
};

nb::tuple constant_tuple(const en::ConstantData& data) {
  nb::list shape;
  for (const int64_t size : data.sizes) shape.append(size);
  const nb::bytes bytes(reinterpret_cast<const char*>(data.bytes.data()), data.bytes.size());
  return nb::make_tuple(text_of(data.dtype), nb::tuple(shape), bytes);
}

void Answers::make_constant(en::NodeId node, const en::ConstantData& data) {
  ask([&] { answers_.attr("constant")(take(node_handle(core_, node)), constant_tuple(data)); });
}

// A graph that a library made, as plain Python: values are ("value", node, index), open arguments
// ("any", name).
class Exported {
 public:
  Exported(const en::Graph& graph, GraphCore* objects, const en::Pattern* pattern)
      : graph_(graph), objects_(objects), pattern_(pattern) {}

  nb::tuple run() const {
    nb::list nodes;
    for (en::NodeId node = graph_.first(); node != graph_.last(); node = graph_.next(node)) {
      nodes.append(node_tuple_of(node));
    }
    nb::list outputs;
    for (const en::ValueId value : graph_.outputs()) outputs.append(value_tuple_of(value));
    return nb::make_tuple(std::string(graph_.name()), nodes, outputs);
  }

  static nb::tuple value_tuple_of(en::ValueId value) {
    return nb::make_tuple("value", value.node, value.index);
  }

 private:
  nb::tuple node_tuple_of(en::NodeId node) const {
    nb::list arguments;
    const en::ArgumentSpan run = graph_.arguments(node);
    for (size_t position = 0; position < run.size();) {
      const en::ArgumentSpan item = en::item_at(run, position);
      arguments.append(argument(item));
      position += item.size();
    }
    const en::ConstantData* data = graph_.payload(node);
    return nb::make_tuple(node, text_of(graph_.type(node)), std::string(graph_.name_text(node)),
                          nb::tuple(arguments), graph_.output_count(node),
                          data == nullptr ? nb::none() : nb::object(constant_tuple(*data)));
  }

  nb::object argument(en::ArgumentSpan item) const {
    const en::Argument& head = item.front();
    switch (head.tag) {
      case en::Tag::kNone:
        return nb::none();
      case en::Tag::kBool:
        return nb::bool_(head.integer != 0);
      case en::Tag::kInt:
        return nb::int_(head.integer);
      case en::Tag::kFloat:
        return nb::float_(head.number);
      case en::Tag::kString:
        return nb::str(text_of(head.id).c_str());
      case en::Tag::kValue:
        return value_tuple_of(head.value);
      case en::Tag::kList:
        return list(item);
      case en::Tag::kOpaque:
        return opaque(head.id);
      case en::Tag::kSymbol:
        return symbol(head.id);
      case en::Tag::kDict:
      case en::Tag::kSlice:
        break;
    }
    throw en::EngineError(en::ErrorCode::kInvalid,
                          "an operator of Python takes no dict or slice as an argument");
  }

  nb::object list(en::ArgumentSpan item) const {
    nb::list items;
    const en::ArgumentSpan inside = item.subspan(1);
    for (size_t position = 0; position < inside.size();) {
      const en::ArgumentSpan next = en::item_at(inside, position);
      items.append(argument(next));
      position += next.size();
    }
    return items;
  }

  nb::object opaque(uint32_t number) const {
    if (pattern_ != nullptr) {
      const auto open = pattern_->open.find(number);
      if (open != pattern_->open.end()) {
        const auto* any = std::get_if<en::AnyArgument>(&open->second.what);
        return nb::make_tuple("any", any == nullptr ? std::string() : text_of(any->name));
      }
    }
    if (objects_ == nullptr || number >= objects_->objects.size()) {
      throw en::EngineError(en::ErrorCode::kInvalid,
                            "there is no object number " + std::to_string(number));
    }
    return nb::borrow(objects_->objects.at(number));
  }

  nb::object symbol(en::StringId expression) const {
    PyObject* known = objects_ != nullptr ? objects_->objects.symbol(expression) : nullptr;
    if (known != nullptr) return nb::borrow(known);
    throw en::EngineError(en::ErrorCode::kInvalid,
                          "nothing in the graph is called " + en::quoted(text_of(expression)));
  }

  const en::Graph& graph_;
  GraphCore* objects_;
  const en::Pattern* pattern_;
};

// A match that Python found, for hooks of a library.
class GivenMatch : public en::Match {
 public:
  GivenMatch(GraphCore& core, nb::dict found);

  en::Graph& graph() const override { return core_.graph; }
  std::string_view pattern_name() const override { return name_; }
  std::vector<en::NodeId> nodes() const override { return nodes_; }
  std::optional<en::ValueId> value(en::ValueId in_pattern) const override {
    const auto place = values_.find(in_pattern);
    if (place == values_.end()) return std::nullopt;
    return place->second;
  }
  std::optional<en::ValueId> captured(uint32_t index) const override {
    if (index >= captured_.size()) return std::nullopt;
    return captured_[index];
  }
  std::vector<en::Argument> named(std::string_view name) const override {
    const auto place = named_.find(std::string(name));
    if (place == named_.end()) return {};
    const en::ArgumentSpan items = place->second.items();
    return {items.begin(), items.end()};
  }

 private:
  en::ValueId value_of(nb::handle object) const {
    ValueHandle* value = as_value(object.ptr());
    if (value == nullptr || value->core != &core_) throw nb::type_error("expected a value");
    return value->id;
  }

  GraphCore& core_;
  std::string name_;
  std::vector<en::NodeId> nodes_;
  std::unordered_map<en::ValueId, en::ValueId> values_;
  std::vector<en::ValueId> captured_;
  std::unordered_map<std::string, en::ArgumentList> named_;
};

// `found`: name, nodes, values {(node, index): value}, captured, named {name: argument}.
GivenMatch::GivenMatch(GraphCore& core, nb::dict found) : core_(core) {
  name_ = nb::cast<std::string>(found["name"]);
  for (nb::handle node : found["nodes"]) nodes_.push_back(as_node(node.ptr())->id);
  for (auto [place, value] : nb::cast<nb::dict>(found["values"])) {
    const nb::tuple in_pattern = nb::cast<nb::tuple>(place);
    values_[{nb::cast<uint32_t>(in_pattern[0]), nb::cast<uint32_t>(in_pattern[1])}] =
        value_of(value);
  }
  for (nb::handle value : found["captured"]) captured_.push_back(value_of(value));
  for (auto [name, argument] : nb::cast<nb::dict>(found["named"])) {
    convert(core_, argument.ptr(), named_[nb::cast<std::string>(name)]);
  }
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

  int64_t run(GraphCore& core, nb::object given) {
    const Answers answers(core, std::move(given));
    en::PassContext context = context_of(answers);
    return call_hook([&] { return instance_->run(core.graph, context); });
  }

  nb::list patterns() {
    en::Graph none("none");
    const std::vector<en::PatternPtr> made =
        call_hook([&] { return instance_->patterns(none, context_); });
    nb::list exported;
    for (const en::PatternPtr& pattern : made) exported.append(export_pattern(*pattern));
    return exported;
  }

  bool meet_match(GraphCore& core, nb::object given, nb::dict found) {
    const Answers answers(core, std::move(given));
    const GivenMatch match(core, std::move(found));
    en::PassContext context = context_of(answers);
    return call_hook([&] { return instance_->meet_requirements(match, context); });
  }

  nb::tuple replace_match(GraphCore& core, nb::object given, nb::dict found) {
    const Answers answers(core, std::move(given));
    const GivenMatch match(core, std::move(found));
    en::PassContext context = context_of(answers);
    const en::GraphPtr made = call_hook([&] { return instance_->replacement(match, context); });
    return Exported(*made, &core, nullptr).run();
  }

  bool meet_node(GraphCore& core, nb::object given, nb::handle node) {
    const Answers answers(core, std::move(given));
    const en::NodeId id = as_node(node.ptr())->id;
    en::PassContext context = context_of(answers);
    return call_hook([&] { return instance_->meet_requirements(core.graph, id, context); });
  }

  nb::tuple replace_node(GraphCore& core, nb::object given, nb::handle node) {
    const Answers answers(core, std::move(given));
    const en::NodeId id = as_node(node.ptr())->id;
    en::PassContext context = context_of(answers);
    const en::GraphPtr made =
        call_hook([&] { return instance_->replacement(core.graph, id, context); });
    return Exported(*made, &core, nullptr).run();
  }

 private:
  en::PassContext context_of(const Answers& answers) const {
    return {registration_->descriptor, context_.instance_id, options_, answers.providers(), ""};
  }

  static nb::tuple export_pattern(const en::Pattern& pattern) {
    nb::list captured;
    for (const en::ValueId value : pattern.captured) {
      captured.append(Exported::value_tuple_of(value));
    }
    nb::dict names;
    for (const auto& [name, value] : pattern.captured_names) {
      names[nb::str(text_of(name).c_str())] = Exported::value_tuple_of(value);
    }
    return nb::make_tuple(pattern.name, Exported(*pattern.graph, nullptr, &pattern).run(), captured,
                          names);
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
