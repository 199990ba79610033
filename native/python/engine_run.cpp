#include "engine_run.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <unordered_map>

#include "engine/run/executor.h"
#include "engine/util/error.h"
#include "engine_match.h"
#include "engine_registry.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

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

// What a descriptor runs, registered or not; a library's pass runs as the descriptor says.
en::RegistrationPtr pass_of(nb::handle descriptor) {
  const nb::object registered = descriptor.attr("registration");
  if (registered.is_none()) return registration_of(descriptor).registration;
  const en::RegistrationPtr& known = nb::cast<PassRegistration&>(registered).registration;
  if (known->of_host) return known;
  auto pass = std::make_shared<en::Registration>(*known);
  pass->descriptor = descriptor_of(descriptor);
  return pass;
}

// Fields as those of bringup.passes.NearMiss.
using NearMissFields =
    std::tuple<std::string, std::string, std::string, std::string, std::string, uint32_t, uint32_t>;

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

// A run of bringup.passes: methods of a bringup.passes.run.executor.Run.
class PythonRun : public en::RunHost {
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
    for (nb::handle graph : nb::list(run_.attr("graphs")())) {
      found.push_back(&graph_of(graph));
      graphs_[found.back()] = nb::borrow(graph);
    }
    return found;
  }

  std::unique_ptr<en::SessionHost> open(en::Graph& graph,
                                        const en::RegistrationPtr& pass) override {
    nb::object session = run_.attr("open")(graphs_.at(&graph), descriptors_.at(pass.get()));
    return std::make_unique<PythonSession>(std::move(session), pass);
  }

  void report_result(const en::PassResult& result, const en::Graph& graph) override {
    run_.attr("report_result")(fields_of(result), graphs_.at(&graph));
  }

  void infer_shapes() override { run_.attr("infer_shapes")(); }
  void fold() override { run_.attr("fold")(); }

 private:
  nb::object run_;
  std::vector<en::RegistrationPtr> selected_;
  std::unordered_map<const en::Registration*, nb::object> descriptors_;
  std::unordered_map<const en::Graph*, nb::object> graphs_;
};

int64_t run_passes(nb::object run, nb::handle descriptors) {
  PythonRun host(std::move(run), descriptors);
  const en::Report report = en::run_passes(host, host.selected());
  return report.failed() ? report.status : 0;
}

nb::dict run_session(nb::object session, nb::handle descriptor) {
  en::RegistrationPtr pass = pass_of(descriptor);
  PythonSession host(std::move(session), pass);
  return fields_of(en::run_session(pass, host, en::shared_outputs(host.graph())));
}

}  // namespace

PythonSession::PythonSession(nb::object session, const en::RegistrationPtr& pass) {
  open(std::move(session), pass);
}

PythonSession::~PythonSession() { close(); }

void PythonSession::open(nb::object session, const en::RegistrationPtr& pass) {
  const nb::object graph = session.attr("graph");
  core_ = &nb::cast<GraphCore&>(graph.attr("core"));
  undo_ = graph.attr("_undo");
  has_listeners_ = nb::cast<bool>(session.attr("has_listeners"));
  is_limited_ = nb::cast<bool>(session.attr("is_limited"));
  is_verified_ = nb::cast<bool>(session.attr("is_verified"));
  can_copy_ = nb::cast<bool>(session.attr("can_copy"));
  if (!pass->of_host) {
    library_host_ = session.attr("library_host")();
    answers_.emplace(*core_, library_host_);
  }
  session_ = std::move(session);
}

// The match that was offered last has to go before the matcher goes on.
void PythonSession::end_match() {
  if (bound_ == nullptr) return;
  *bound_ = nullptr;
  bound_.reset();
  call<void>("end_match");
}

void PythonSession::rollback() {
  with_gil([&] {
    end_match();
    call<void>("rollback");
  });
}

void PythonSession::close() {
  if (bound_ != nullptr) *bound_ = nullptr;
  answers_.reset();
  library_host_.reset();
  undo_.reset();
  session_.reset();
}

void PythonSession::begin(uint64_t instance_id) {
  with_gil([&] { call<void>("begin", instance_id); });
}

void PythonSession::copy_outputs(const std::vector<uint32_t>& outputs) {
  with_gil([&] { call<void>("copy_outputs", outputs); });
}

std::unique_ptr<en::Pass> PythonSession::make_instance(const en::Registration& pass) {
  return with_gil([&]() -> std::unique_ptr<en::Pass> {
    if (!pass.of_host) {
      options_ = options_of(nb::dict(session_.attr("options")));
      call<void>("take_instance", nb::none());
      return library_pass(pass, *core_, session_, library_host_);
    }
    std::unique_ptr<en::Pass> instance = en::make_instance(pass);
    auto& python = static_cast<PythonPass&>(*instance);
    call<void>("take_instance", python.instance());
    python.run_in(session_, *core_);
    return instance;
  });
}

const en::Providers& PythonSession::providers() const {
  static const en::Providers none;
  return answers_ ? answers_->providers() : none;
}

en::Graph::Savepoint PythonSession::savepoint() {
  return with_gil([&] {
    notes_ = nb::len(undo_);
    return graph().savepoint();
  });
}

void PythonSession::roll_back_to(const en::Graph::Savepoint& savepoint) {
  with_gil([&] {
    editable(*core_).rollback_to(savepoint);
    if (nb::len(undo_) > notes_) call<void>("undo_since", notes_);
  });
}

void PythonSession::search(const std::function<void()>& work) {
  with_gil([&] {
    end_match();
    const Searching searching(*core_);
    const nb::gil_scoped_release released;
    work();
  });
}

void PythonSession::offer(en::Target* target) {
  with_gil([&] {
    if (answers_) answers_->forget();
    if (target == nullptr) {
      if (bound_ != nullptr) *bound_ = nullptr;
      return call<void>("end_search");
    }
    if (!target->is_match()) {
      return call<void>("take_node", take(node_handle(*core_, target->node())));
    }
    bound_ = std::make_shared<const en::Bindings*>(&target->bound());
    const nb::tuple match = python_match(*core_, *target, bound_, nb::none());
    call<void>("take_match", target->search(), *match);
  });
}

std::vector<en::NodeId> PythonSession::replace(const en::Graph&, const en::Target& target,
                                               en::AliasAnalysis& aliases) {
  return with_gil([&] {
    auto& replacement = nb::cast<GraphCore&>(call<nb::object>("prepare_replacement"));
    Copier copier(*core_, &replacement);
    const en::Boundary::Part part = target.part(replacement.graph.outputs().size());
    return en::replace(editable(*core_), replacement.graph, part, aliases,
                       rewriting_providers(copier));
  });
}

void PythonSession::report_rewrite(const std::vector<en::NodeId>& made) {
  if (!has_listeners_) return;
  with_gil([&] {
    call<void>("report_rewrite", take(node_tuple(*core_, operators_among(graph(), made))));
  });
}

en::Verdict PythonSession::classify_error(std::exception_ptr error) const {
  return with_gil([&]() -> en::Verdict {
    const auto [kind, status, text] =
        call<std::tuple<int, int64_t, std::string>>("classify_error", exception_of(error));
    return {static_cast<en::Verdict::Kind>(kind), status, text};
  });
}

std::string PythonSession::describe(std::exception_ptr error) {
  return with_gil([&] {
    const auto text = call<std::string>("describe", exception_of(error));
    traceback_ = nb::cast<std::string>(session_.attr("traceback"));
    return text;
  });
}

void bind_running(nb::module_& module) {
  module.def("run_passes", &run_passes,
             "Runs passes by the steps of `run`; the status of the first failure, or 0.");
  module.def("run_session", &run_session,
             "Runs one pass by the steps of `session`; the fields of its result.");
}

}  // namespace bringup::python
