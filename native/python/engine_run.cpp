#include "engine_run.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <unordered_map>

#include "engine/run/decompose_targets.h"
#include "engine/run/executor.h"
#include "engine/util/error.h"
#include "engine_aliases.h"
#include "engine_core.h"
#include "engine_registry.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

// The flow runs with the GIL: what is worth it, the search for matches and the code of libraries,
// releases it.
template <class Result, class... Arguments>
Result call(const nb::object& object, const char* method, Arguments&&... arguments) {
  const nb::object result = object.attr(method)(std::forward<Arguments>(arguments)...);
  if constexpr (!std::is_void_v<Result>) return nb::cast<Result>(result);
}

nb::object made(PyObject* error) {
  if (error == nullptr) throw nb::python_error();
  return nb::steal(error);
}

// What was thrown, as an exception of Python.
nb::object exception_of(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const nb::python_error& raised) {
    return nb::borrow(raised.value());
  } catch (const en::SkipPass& skip) {
    return made(new_error(ErrorClass::kPassSkip, skip.what()));
  } catch (const en::StatusError& failure) {
    return nb::steal(
        Ref::checked(new_error(ErrorClass::kPass, failure.what(), failure.status())).release());
  } catch (const en::EngineError& failure) {
    set_python_error(failure);
    return nb::borrow(nb::python_error().value());
  } catch (const std::exception& failure) {
    return made(new_error(ErrorClass::kPass, failure.what()));
  }
}

en::Graph& graph_of(nb::handle graph) { return nb::cast<GraphCore&>(graph.attr("core")).graph; }

// What a descriptor runs. For a pass of a library that is the class that stands for it in Python.
en::RegistrationPtr pass_of(nb::handle descriptor) {
  const nb::object registered = descriptor.attr("registration");
  if (!registered.is_none()) {
    const en::RegistrationPtr& pass = nb::cast<PassRegistration&>(registered).registration;
    if (pass->of_host) return pass;
  }
  return registration_of(descriptor).registration;
}

// The steps of a session, which are methods of a bringup.passes.run.session.Session.
class PythonSession : public en::SessionSteps {
 public:
  PythonSession(nb::object session, en::RegistrationPtr pass)
      : core_(nb::cast<GraphCore&>(session.attr("graph").attr("core"))),
        graph_(core_.graph),
        pass_(std::move(pass)),
        has_listeners_(nb::cast<bool>(session.attr("has_listeners"))),
        is_limited_(nb::cast<bool>(session.attr("is_limited"))),
        can_copy_(nb::cast<bool>(session.attr("can_copy"))),
        session_(std::move(session)) {
    const en::PassDescriptor& descriptor = pass_->descriptor;
    if (descriptor.kind == en::PassKind::kDecompose) targets_.emplace(graph_, descriptor.op_types);
  }

  en::Graph& graph() override { return graph_; }

  void begin(uint64_t instance_id) override {
    call<void>(session_, "begin", instance_id);
    instance_ = en::make_instance(*pass_);
    call<void>(session_, "take_instance", static_cast<PythonPass&>(*instance_).instance());
  }

  int64_t run() override { return call<int64_t>(session_, "run"); }
  uint64_t fusions() const override { return call<uint64_t>(session_, "fusions"); }
  void settle() override { call<void>(session_, "settle"); }
  bool can_copy() const override { return can_copy_; }
  void copy_outputs(const std::vector<uint32_t>& outputs) override {
    call<void>(session_, "copy_outputs", outputs);
  }
  void commit() override { call<void>(session_, "commit"); }
  void rollback() override { call<void>(session_, "rollback"); }

  size_t prepare() override { return call<size_t>(session_, "prepare"); }
  void start(size_t search) override {
    call<void>(session_, "start", search);
    if (targets_) targets_->start();
  }
  bool next() override {
    if (!targets_) return call<bool>(session_, "next");
    if (!targets_->next()) return false;
    call<void>(session_, "take_node", take(node_handle(core_, targets_->node())));
    return true;
  }
  std::optional<std::string> refusal() override {
    if (!targets_) return std::nullopt;
    const auto aliases = session_.attr("aliases").attr("core");
    return targets_->refusal(*nb::cast<AliasAnalysisCore&>(aliases).aliases);
  }
  bool meets_requirements() override { return call<bool>(session_, "meets_requirements"); }
  void make_replacement() override { call<void>(session_, "make_replacement"); }
  void replace() override { call<void>(session_, "replace"); }
  void refuse(const std::string& reason) override {
    targets_ ? targets_->refuse(reason) : call<void>(session_, "refuse", reason);
  }
  std::optional<en::NearMiss> near_miss() override;
  void savepoint() override { call<void>(session_, "savepoint"); }
  void release_savepoint() override { call<void>(session_, "release_savepoint"); }
  void rollback_to_savepoint() override { call<void>(session_, "rollback_to_savepoint"); }

  // Steps of every candidate that are mostly empty are left out where they are.
  bool may_rewrite() override { return !is_limited_ || call<bool>(session_, "may_rewrite"); }
  void report_match() override {
    if (has_listeners_) call<void>(session_, "report_match");
  }
  void report_replacement() override {
    if (has_listeners_) call<void>(session_, "report_replacement");
  }

  en::Verdict classify_error(std::exception_ptr error) const override {
    const auto [kind, status, text] = call<std::tuple<int, int64_t, std::string>>(
        session_, "classify_error", exception_of(error));
    return {static_cast<en::Verdict::Kind>(kind), status, text};
  }

  std::string describe(std::exception_ptr error) override {
    return call<std::string>(session_, "describe", exception_of(error));
  }

 private:
  GraphCore& core_;
  en::Graph& graph_;
  const en::RegistrationPtr pass_;
  const bool has_listeners_;
  const bool is_limited_;
  const bool can_copy_;
  nb::object session_;
  std::unique_ptr<en::Pass> instance_;
  std::optional<en::DecomposeTargets> targets_;  // of a decompose pass
};

// Fields as those of bringup.passes.NearMiss.
using NearMissFields =
    std::tuple<std::string, std::string, std::string, std::string, std::string, uint32_t, uint32_t>;

std::optional<en::NearMiss> PythonSession::near_miss() {
  if (targets_) return targets_->near_miss();
  const auto found = call<std::optional<NearMissFields>>(session_, "near_miss");
  if (!found) return std::nullopt;
  return std::make_from_tuple<en::NearMiss>(*found);
}

NearMissFields fields_of(const en::NearMiss& miss) {
  return {miss.pattern, miss.node, miss.reason, miss.expected, miss.got, miss.matched, miss.size};
}

// The fields of a bringup.passes.PassResult but for the name of the graph.
nb::dict fields_of(const en::PassResult& result) {
  nb::list misses;
  for (const en::NearMiss& miss : result.near_misses) misses.append(fields_of(miss));
  nb::dict all;
  all["name"] = result.name;
  all["stage"] = std::string(en::name_of(result.stage));
  all["status"] = std::string(en::name_of(result.outcome));
  all["matches"] = result.matches;
  all["refused"] = result.refused;
  all["edits"] = result.edits;
  all["near_misses"] = misses;
  all["message"] = result.message;
  all["seconds"] = result.seconds;
  all["version"] = result.version;
  all["instance_id"] = result.instance_id;
  all["code"] = result.status;
  all["failures"] = result.failures;
  all["tolerated"] = result.tolerated;
  return all;
}

// The steps of a run, which are methods of a bringup.passes.run.executor.Run.
class PythonRun : public en::RunSteps {
 public:
  PythonRun(nb::object run, nb::handle descriptors) : run_(std::move(run)) {
    for (nb::handle item : descriptors) {
      selected_.push_back(pass_of(item));
      descriptors_[selected_.back().get()] = nb::borrow(item);
    }
  }

  const std::vector<en::RegistrationPtr>& selected() const { return selected_; }

  std::vector<en::Graph*> graphs() override {
    std::vector<en::Graph*> found;
    for (nb::handle graph : call<nb::list>(run_, "graphs")) {
      found.push_back(&graph_of(graph));
      graphs_[found.back()] = nb::borrow(graph);
    }
    return found;
  }

  std::unique_ptr<en::SessionSteps> open(en::Graph& graph,
                                         const en::RegistrationPtr& pass) override {
    nb::object session =
        call<nb::object>(run_, "open", graphs_.at(&graph), descriptors_.at(pass.get()));
    return std::make_unique<PythonSession>(std::move(session), pass);
  }

  void report_result(const en::PassResult& result, const en::Graph& graph) override {
    call<void>(run_, "report_result", fields_of(result), graphs_.at(&graph));
  }

  void infer_shapes() override { call<void>(run_, "infer_shapes"); }
  void fold() override { call<void>(run_, "fold"); }

 private:
  nb::object run_;
  std::vector<en::RegistrationPtr> selected_;
  std::unordered_map<const en::Registration*, nb::object> descriptors_;
  std::unordered_map<const en::Graph*, nb::object> graphs_;
};

int64_t run_passes(nb::object run, nb::handle descriptors) {
  PythonRun steps(std::move(run), descriptors);
  const en::Report report = en::run_passes(steps, steps.selected());
  return report.failed() ? report.status : 0;
}

nb::dict run_session(nb::object session, nb::handle descriptor) {
  en::RegistrationPtr pass = pass_of(descriptor);
  PythonSession steps(std::move(session), pass);
  return fields_of(en::run_session(pass->descriptor, steps, en::shared_outputs(steps.graph())));
}

}  // namespace

std::unique_ptr<en::SessionSteps> python_session(nb::object session, en::RegistrationPtr pass) {
  return std::make_unique<PythonSession>(std::move(session), std::move(pass));
}

void bind_running(nb::module_& module) {
  module.def("run_passes", &run_passes, nb::arg("run"), nb::arg("descriptors"),
             "Runs passes by the steps of `run`; the status of the first failure, or 0.");
  module.def("run_session", &run_session, nb::arg("session"), nb::arg("descriptor"),
             "Runs one pass by the steps of `session`; the fields of its result.");
}

}  // namespace bringup::python
