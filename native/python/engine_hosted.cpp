// Passes in Python on graphs of C++ programs: the graph itself is lent to Python for one session.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <cstring>
#include <memory>
#include <type_traits>

#include "bringup/engine.h"
#include "bringup_build_key.h"
#include "engine/graph/native_host.h"
#include "engine/run/host_sessions.h"
#include "engine/util/error.h"
#include "python/bindings.h"
#include "python/engine_borrowed.h"
#include "python/engine_questions.h"
#include "python/engine_registry.h"
#include "python/engine_run.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

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

// One thread state a session, so that what Python keeps by thread lasts from step to step.
class ThreadState {
 public:
  ThreadState() : former_(PyGILState_Ensure()), saved_(PyEval_SaveThread()) {}
  ~ThreadState() {
    PyEval_RestoreThread(saved_);
    PyGILState_Release(former_);
  }
  ThreadState& operator=(ThreadState&&) = delete;

 private:
  PyGILState_STATE former_;
  PyThreadState* saved_;
};

// Python's session over the graph of a program, which lends it that graph.
class LentSession : private ThreadState, public PythonSession {
 public:
  LentSession(en::Graph& graph, const en::RegistrationPtr& pass, const en::SharedRunState& state,
              const nb::object& module)
      : graph_(graph) {
    const nb::gil_scoped_acquire acquired;
    try {
      open_session(pass, state, module);
    } catch (const nb::python_error& error) {
      const std::string text = error.what();
      drop();
      en::throw_error(en::ErrorCode::kPass, "Python cannot open the graph: ", text);
    } catch (...) {
      drop();
      throw;
    }
  }

  ~LentSession() override {
    const nb::gil_scoped_acquire acquired;
    try {
      if (session_.is_valid()) session_.attr("close")();
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("the end of a pass on the graph of a C++ program");
    }
    drop();
  }

  void commit() override {
    with_gil([&] { borrowed_->check(); });
    PythonSession::commit();
  }

  // What is no Exception, such as the KeyboardInterrupt of a hook, cannot go to the program.
  en::Verdict classify_error(std::exception_ptr error) const override {
    try {
      return PythonSession::classify_error(error);
    } catch (const nb::python_error& raised) {
      return {en::Verdict::Kind::kFatal, BRINGUP_ENGINE_FAILED, text_of(raised)};
    }
  }

  std::string describe(std::exception_ptr error) override {
    try {
      return PythonSession::describe(error);
    } catch (const nb::python_error& raised) {
      return with_gil([&] { return std::string(raised.what()); });
    }
  }

 private:
  static std::string text_of(const nb::python_error& raised) {
    return with_gil([&] { return std::string(nb::str(raised.value()).c_str()); });
  }

  void open_session(const en::RegistrationPtr& pass, const en::SharedRunState& state,
                    const nb::object& module) {
    const Makers makers{module.attr("make_desc"), module.attr("make_data"),
                        module.attr("make_object"), module.attr("make_symbol")};
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
    open(session_, pass);
  }

  // With the lock. The graph goes back before anything of Python does.
  void drop() {
    try {
      if (borrowed_ != nullptr && session_.is_valid()) borrowed_->give_back();
    } catch (...) {
      // What could not be described is unknown; the graph is the program's again all the same.
      graph_.set_host(en::NativeHost::instance());
      PyErr_Clear();
    }
    if (operators_.is_valid()) nb::cast<HostOperators&>(operators_).expire();
    close();
    session_.reset();
    operators_.reset();
    borrowed_.reset();
  }

  en::Graph& graph_;
  std::unique_ptr<BorrowedGraph> borrowed_;
  nb::object operators_, session_;
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

  std::unique_ptr<en::SessionHost> open(en::Graph& graph, const en::RegistrationPtr& pass,
                                        const en::SharedRunState& state) override {
    return std::make_unique<LentSession>(graph, pass, state, module_);
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
  return concat("bringup._native._core was built with the key ", BRINGUP_BUILD_KEY,
                ", the libbringup_engine.so of this process with ", en::build_key(),
                ": take both from one package");
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
