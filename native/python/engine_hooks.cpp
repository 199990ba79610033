#include "engine_hooks.h"

#include <nanobind/stl/string.h>

#include "engine/capi/handles.h"
#include "engine/run/session.h"
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

// The text of the exception without its traceback.
std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const size_t start = text.rfind('\n');
  return start == std::string::npos ? text : text.substr(start + 1);
}

// Calls Python with the GIL; an exception becomes an error of the engine with its text.
template <class Work>
auto ask(Work&& work) {
  const nb::gil_scoped_acquire acquired;
  try {
    return work();
  } catch (const PythonError&) {
    nb::python_error error;
    en::throw_error(en::ErrorCode::kFailed, last_line(error.what()));
  } catch (const nb::python_error& error) {
    en::throw_error(en::ErrorCode::kFailed, last_line(error.what()));
  }
}

std::vector<en::PatternProgram> programs_of(nb::handle programs, GraphCore& core) {
  std::vector<en::PatternProgram> made;
  for (nb::handle program : programs) made.push_back(program_for(program, core));
  return made;
}

en::GraphPtr held_by(nb::handle graph) { return nb::cast<GraphCore&>(graph.attr("core")).held; }

class LibraryPass : public en::Pass {
 public:
  LibraryPass(const en::Registration& pass, GraphCore& core, nb::object session, nb::object answers)
      : core_(core), session_(std::move(session)), answers_(std::move(answers)) {
    instance_ = call_hook([&] { return en::make_instance(pass); });
  }

  ~LibraryPass() override {
    const nb::gil_scoped_release released;
    instance_.reset();
  }

  int64_t run(en::Graph& graph, en::PassContext& context) override {
    return call_hook([&] { return instance_->run(graph, context); });
  }

  // Those of Python: what its dialect makes of those of the library.
  std::vector<en::PatternProgram> programs(en::Graph&, en::PassContext& context) override {
    en::Graph none("none");
    const std::vector<en::PatternPtr> made =
        call_hook([&] { return instance_->patterns(none, context); });
    nb::list imported;
    for (const en::PatternPtr& pattern : made)
      imported.append(imported_pattern(*pattern, answers_));
    return programs_of(session_.attr("take_patterns")(imported), core_);
  }

  bool meet_requirements(en::Target& target, en::PassContext& context) override {
    return call_hook([&] { return instance_->meet_requirements(target, context); });
  }

  en::GraphPtr replacement(en::Target& target, en::PassContext& context) override {
    const en::GraphPtr made = call_hook([&] { return instance_->replacement(target, context); });
    const nb::object imported = imported_graph(*made, core_, answers_);
    session_.attr("take_replacement")(imported);
    return held_by(imported);
  }

 private:
  GraphCore& core_;
  nb::object session_, answers_;
  std::unique_ptr<en::Pass> instance_;
};

}  // namespace

Answers::Answers(GraphCore& core, nb::object answers) : core_(core), answers_(std::move(answers)) {
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

const en::Operator* Answers::bind(en::StringId type, en::ArgumentList& arguments) {
  return ask([&] {
    const Ref given = python_arguments(core_, arguments.items(), arguments.count());
    const nb::tuple bound(answers_.attr("bind")(text_of(type), nb::borrow(given.get())));
    arguments.clear();
    convert_all(core_, nb::object(bound[1]).ptr(), arguments);
    return operator_of(nb::object(bound[0]).ptr());
  });
}

std::optional<std::string> Answers::supports(en::NodeId node) {
  return ask([&]() -> std::optional<std::string> {
    const nb::tuple answer(answers_.attr("supports")(take(node_handle(core_, node))));
    if (nb::cast<bool>(answer[0])) return std::nullopt;
    return nb::cast<std::string>(answer[1]);
  });
}

void Answers::make_constant(en::NodeId node, const en::ConstantData& data) {
  ask([&] { answers_.attr("constant")(take(node_handle(core_, node)), constant_fields(data)); });
}

en::NodeId Answers::copy(const en::CopiedNode& copied) {
  if (copied.op != en::Operators::constant()) return ask([&] { return copier_.copy(copied); });
  const en::NodeId node = core_.graph.add_constant(copied.replacement.name(copied.original));
  const en::ConstantData* data = copied.replacement.payload(copied.original);
  if (data != nullptr) make_constant(node, *data);
  return node;
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

std::unique_ptr<en::Pass> library_pass(const en::Registration& pass, GraphCore& core,
                                       nb::object session, nb::object answers) {
  return std::make_unique<LibraryPass>(pass, core, std::move(session), std::move(answers));
}

PythonPass::~PythonPass() {
  const nb::gil_scoped_acquire acquired;
  instance_.reset();
  session_.reset();
}

void PythonPass::run_in(nb::object session, GraphCore& core) {
  session_ = std::move(session);
  core_ = &core;
}

int64_t PythonPass::run(en::Graph&, en::PassContext&) {
  return with_gil([&] { return nb::cast<int64_t>(session_.attr("run")()); });
}

std::vector<en::PatternProgram> PythonPass::programs(en::Graph&, en::PassContext&) {
  return with_gil([&] { return programs_of(session_.attr("patterns")(), *core_); });
}

bool PythonPass::meet_requirements(en::Target&, en::PassContext&) {
  return with_gil([&] { return nb::cast<bool>(session_.attr("meets_requirements")()); });
}

en::GraphPtr PythonPass::replacement(en::Target&, en::PassContext&) {
  return with_gil([&] { return held_by(session_.attr("make_replacement")()); });
}

}  // namespace bringup::python
