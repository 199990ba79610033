// Running passes over graphs of bringup.ir: the engine's flow, with Python as the host.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>

#include "engine/run/session_host.h"
#include "engine_handles.h"
#include "engine_hooks.h"
#include "engine_match.h"

namespace bringup::python {

// A graph of Python, with a bringup.passes.run.session.Session. The flow of a run that Python
// begins holds the GIL; the search for matches and code of libraries release it.
class PythonSession : public en::SessionHost {
 public:
  PythonSession(nanobind::object session, const en::RegistrationPtr& pass);
  ~PythonSession() override;

  en::Graph& graph() override { return core_->graph; }
  const en::Options& options() const override { return options_; }
  const en::Providers& providers() const override;

  void begin(uint64_t instance_id) override;
  std::unique_ptr<en::Pass> make_instance(const en::Registration& pass) override;
  void settle() override { step<void>("settle"); }
  bool can_copy() const override { return can_copy_; }
  void copy_outputs(const std::vector<uint32_t>& outputs) override;
  void commit() override { step<void>("commit"); }
  void rollback() override;
  en::Graph::Savepoint savepoint() override;
  void roll_back_to(const en::Graph::Savepoint& savepoint) override;

  void before_run() override {
    if (is_verified_) step<void>("before_run");
  }
  void after_run() override {
    if (is_verified_) step<void>("after_run");
  }
  uint64_t fusions() const override { return step<uint64_t>("fusions"); }

  void search(const std::function<void()>& work) override;
  void offer(en::Target* target) override;
  bool may_rewrite() override { return !is_limited_ || step<bool>("may_rewrite"); }
  std::vector<en::NodeId> replace(const en::Graph& replacement, const en::Target& target,
                                  en::AliasAnalysis& aliases) override;
  void report_rewrite(const std::vector<en::NodeId>& made) override;

  en::Verdict classify_error(std::exception_ptr error) const override;
  std::string describe(std::exception_ptr error) override;
  std::string traceback() override { return traceback_; }

 protected:
  PythonSession() = default;
  // With the GIL; `close` lets go of everything of Python.
  void open(nanobind::object session, const en::RegistrationPtr& pass);
  void close();

 private:
  void end_match();

  template <class Result, class... Arguments>
  Result call(const char* method, Arguments&&... arguments) const {
    const nanobind::object result = session_.attr(method)(std::forward<Arguments>(arguments)...);
    if constexpr (!std::is_void_v<Result>) return nanobind::cast<Result>(result);
  }
  template <class Result>
  Result step(const char* method) const {
    return with_gil([&] { return call<Result>(method); });
  }

  nanobind::object session_, undo_, library_host_;
  GraphCore* core_ = nullptr;
  // What most sessions do not have, so that nothing is called for it.
  bool has_listeners_ = false;
  bool is_limited_ = false;
  bool is_verified_ = false;
  bool can_copy_ = false;
  en::Options options_;             // of a library's pass
  std::optional<Answers> answers_;  // likewise
  FoundBindings bound_;
  size_t notes_ = 0;  // that the graph had at the savepoint, to be undone beside its journal
  std::string traceback_;
};

}  // namespace bringup::python
