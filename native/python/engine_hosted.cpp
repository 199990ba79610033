#include "python/engine_hosted.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "bringup/engine.h"
#include "bringup_build_key.h"
#include "engine/graph/native_host.h"
#include "engine/run/host_sessions.h"
#include "engine/util/error.h"
#include "python/engine_borrowed.h"
#include "python/engine_questions.h"
#include "python/engine_registry.h"
#include "python/engine_run.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

// Stands for an exception of Python, which stays with its session: results keep what was thrown,
// and live on when the interpreter does not.
class HostedError : public std::exception {
 public:
  HostedError(size_t number, std::string text) : number_(number), text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }
  size_t number() const { return number_; }

 private:
  size_t number_;
  std::string text_;
};

nb::object python_option(const en::OptionValue& value) {
  return std::visit(
      [](const auto& held) -> nb::object {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::monostate>) {
          return nb::none();
        } else {
          return nb::cast(held);
        }
      },
      value);
}

// One thread state for a whole session, with the lock only where somebody takes it: with one for
// each step, what Python keeps by thread and context would not last from one to the next.
class ThreadState {
 public:
  ThreadState() : former_(PyGILState_Ensure()), saved_(PyEval_SaveThread()) {}
  ~ThreadState() {
    PyEval_RestoreThread(saved_);
    PyGILState_Release(former_);
  }
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

 private:
  PyGILState_STATE former_;
  PyThreadState* saved_;
};

// One session: Python's steps, each with the lock and none of Python's exceptions out of it.
class HostedSession : public en::SessionSteps {
 public:
  HostedSession(en::Graph& graph, const en::RegistrationPtr& pass, const en::SharedRunState& state,
                const nb::object& module)
      : graph_(graph) {
    const nb::gil_scoped_acquire acquired;
    try {
      open(pass, state, module);
    } catch (const nb::python_error& error) {
      const std::string text = error.what();
      drop();
      throw en::EngineError(en::ErrorCode::kPass, "Python cannot open the graph: " + text);
    } catch (...) {
      drop();
      throw;
    }
  }

  ~HostedSession() override {
    const nb::gil_scoped_acquire acquired;
    try {
      if (session_.is_valid()) close_(session_);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("the end of a pass on the graph of a C++ program");
    }
    drop();
  }

  en::Graph& graph() override { return graph_; }
  void begin(uint64_t instance_id) override {
    step([&](auto& steps) { steps.begin(instance_id); });
  }
  int64_t run() override {
    return step([](auto& steps) { return steps.run(); });
  }
  uint64_t fusions() const override {
    return const_cast<HostedSession*>(this)->step([](auto& steps) { return steps.fusions(); });
  }
  void settle() override {
    step([](auto& steps) { steps.settle(); });
  }
  void commit() override {
    step([&](auto& steps) {
      borrowed_->check();
      steps.commit();
    });
  }
  void rollback() override {
    step([](auto& steps) { steps.rollback(); });
  }
  size_t prepare() override {
    return step([](auto& steps) { return steps.prepare(); });
  }
  void start(size_t search) override {
    step([&](auto& steps) { steps.start(search); });
  }
  bool next() override {
    return step([](auto& steps) { return steps.next(); });
  }
  std::optional<std::string> refusal() override {
    return step([](auto& steps) { return steps.refusal(); });
  }
  bool meets_requirements() override {
    return step([](auto& steps) { return steps.meets_requirements(); });
  }
  void make_replacement() override {
    step([](auto& steps) { steps.make_replacement(); });
  }
  void replace() override {
    step([](auto& steps) { steps.replace(); });
  }
  void refuse(const std::string& reason) override {
    step([&](auto& steps) { steps.refuse(reason); });
  }
  std::optional<en::NearMiss> near_miss() override {
    return step([](auto& steps) { return steps.near_miss(); });
  }
  void savepoint() override {
    step([](auto& steps) { steps.savepoint(); });
  }
  void release_savepoint() override {
    step([](auto& steps) { steps.release_savepoint(); });
  }
  void rollback_to_savepoint() override {
    step([](auto& steps) { steps.rollback_to_savepoint(); });
  }
  bool may_rewrite() override {
    return step([](auto& steps) { return steps.may_rewrite(); });
  }

  en::Verdict classify_error(std::exception_ptr error) const override {
    const nb::gil_scoped_acquire acquired;
    try {
      return steps_->classify_error(original(error));
    } catch (nb::python_error& raised) {  // no Exception, such as the KeyboardInterrupt of a hook
      return {en::Verdict::Kind::kFatal, BRINGUP_ENGINE_FAILED,
              std::string(nb::str(raised.value()).c_str())};
    }
  }

  std::string describe(std::exception_ptr error) override {
    const nb::gil_scoped_acquire acquired;
    try {
      const std::string text = steps_->describe(original(error));
      traceback_ = nb::cast<std::string>(session_.attr("traceback"));
      return text;
    } catch (nb::python_error& raised) {
      return raised.what();
    }
  }

  std::string traceback() override { return traceback_; }

 private:
  void open(const en::RegistrationPtr& pass, const en::SharedRunState& state,
            const nb::object& module) {
    const Makers makers{module.attr("make_desc"), module.attr("make_data"),
                        module.attr("make_object"), module.attr("make_symbol")};
    close_ = module.attr("close_session");
    borrowed_ = std::make_unique<BorrowedGraph>(graph_, makers);
    nb::dict options;
    for (const auto& [key, value] : state.options) {
      options[nb::str(key.c_str())] = python_option(value);
    }
    const nb::object operators =
        nb::cast(new HostOperators(state.providers, makers), nb::rv_policy::take_ownership);
    operators_ = operators;
    session_ = module.attr("open_session")(borrowed_->core(), std::string(graph_.name()),
                                           PassRegistration{pass}, options, operators);
    borrowed_->describe();
    steps_ = python_session(session_, pass);
  }

  // With the lock. The graph goes back before anything of Python does.
  void drop() {
    steps_.reset();
    try {
      if (borrowed_ != nullptr && session_.is_valid()) borrowed_->give_back();
    } catch (...) {
      // What could not be described is unknown; the graph is the program's again all the same.
      graph_.set_host(en::NativeHost::instance());
      PyErr_Clear();
    }
    if (operators_.is_valid()) nb::cast<HostOperators&>(operators_).expire();
    originals_.clear();
    session_.reset();
    operators_.reset();
    close_.reset();
    borrowed_.reset();
  }

  template <class Work>
  std::invoke_result_t<Work, en::SessionSteps&> step(Work&& work) {
    const nb::gil_scoped_acquire acquired;
    try {
      return work(*steps_);
    } catch (const PythonError&) {
      remember(std::make_exception_ptr(nb::python_error()));
    } catch (const nb::python_error&) {
      remember(std::current_exception());
    }
    throw HostedError(originals_.size() - 1, "an exception of Python");
  }

  void remember(std::exception_ptr error) { originals_.push_back(std::move(error)); }

  std::exception_ptr original(std::exception_ptr error) const {
    try {
      std::rethrow_exception(error);
    } catch (const HostedError& hosted) {
      return originals_[hosted.number()];
    } catch (...) {
      return error;
    }
  }

  const ThreadState thread_;  // first, so that it goes last
  en::Graph& graph_;
  std::unique_ptr<BorrowedGraph> borrowed_;
  nb::object operators_, session_, close_;
  std::unique_ptr<en::SessionSteps> steps_;
  std::vector<std::exception_ptr> originals_;
  std::string traceback_;
};

class PythonSessions : public en::HostSessions {
 public:
  explicit PythonSessions(nb::object module) : module_(std::move(module)) {}
  ~PythonSessions() override {
    if (!Py_IsInitialized()) {
      module_.release();
      return;
    }
    const nb::gil_scoped_acquire acquired;
    module_.reset();
  }

  std::unique_ptr<en::SessionSteps> open(en::Graph& graph, const en::RegistrationPtr& pass,
                                         const en::SharedRunState& state) override {
    return std::make_unique<HostedSession>(graph, pass, state, module_);
  }

 private:
  nb::object module_;
};

}  // namespace

// Read from the file before the module is opened: beside an engine with other symbols it cannot be.
extern "C" __attribute__((used, visibility("default"))) const char bringup_core_build_key[] =
    "bringup core build key: " BRINGUP_BUILD_KEY;

std::string engine_mismatch() {
  if (std::strcmp(en::build_key(), BRINGUP_BUILD_KEY) == 0) return "";
  return std::string("bringup._native._core was built with the key ") + BRINGUP_BUILD_KEY +
         ", the libbringup_engine.so of this process with " + en::build_key() +
         ": take both from one package";
}

void bind_hosted(nb::module_& module) {
  bind_borrowed(module);
  bind_questions(module);
  module.def("serve_programs", [](nb::object sessions) {
    en::set_host_sessions(std::make_shared<PythonSessions>(std::move(sessions)));
  });
  module.def("leave_programs", [] { en::set_host_sessions(nullptr); });
  module.def(
      "interrupt_thread",
      [](unsigned long thread, nb::handle error) {
        return PyThreadState_SetAsyncExc(thread, error.is_none() ? nullptr : error.ptr());
      },
      nb::arg(), nb::arg().none());
  module.def("build_key", [] { return BRINGUP_BUILD_KEY; });
}

}  // namespace bringup::python
