// The engine as the host of its own graphs.
#include "engine/analysis/order.h"
#include "engine/run/native_run.h"
#include "engine/util/error.h"

namespace bringup::engine {
namespace {

class NativeSession : public SessionHost {
 public:
  NativeSession(Graph& graph, const RegistrationPtr& pass, const SharedRunState& shared_state)
      : graph_(graph), pass_(pass), shared_state_(shared_state) {}

  Graph& graph() override { return graph_; }
  const Options& options() const override { return shared_state_.options; }
  const Providers& providers() const override { return shared_state_.providers; }

  void begin(uint64_t) override {
    graph_.begin(Strings::intern(pass_->descriptor.pass_name));
    is_open_ = true;
  }

  void settle() override {
    if (const std::optional<OrderFailure> failure = topological_sort(graph_)) {
      throw_error(ErrorCode::kPass, "the graph cannot be ordered so that ",
                  in_quotes(graph_.name_text(failure->node)), " has its inputs: ", failure->reason);
    }
    if (providers().settle) providers().settle(graph_);
  }

  void commit() override {
    if (shared_state_.commit && !graph_.journal().empty()) {
      shared_state_.commit(graph_, graph_.journal());
    }
    is_open_ = false;
    graph_.commit();
  }

  void rollback() override {
    if (!is_open_) return;
    is_open_ = false;
    graph_.rollback();
  }

 private:
  Graph& graph_;
  const RegistrationPtr pass_;
  const SharedRunState shared_state_;
  bool is_open_ = false;
};

}  // namespace

std::unique_ptr<SessionHost> native_session(Graph& graph, const RegistrationPtr& pass,
                                            const SharedRunState& shared_state) {
  return std::make_unique<NativeSession>(graph, pass, shared_state);
}

}  // namespace bringup::engine
