#include "engine/session.h"

#include <atomic>
#include <chrono>
#include <memory>

#include "bringup/engine.h"
#include "engine/error.h"
#include "engine/order.h"
#include "engine/rewriting.h"
#include "engine/status.h"

namespace bringup::engine {
namespace {

uint64_t next_instance_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

// Undoes what was not committed.
class Transaction {
 public:
  Transaction(Graph& graph, const std::string& rule) : graph_(graph) {
    graph.begin(Strings::intern(rule));
  }
  ~Transaction() {
    if (!done_) graph_.rollback();
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  void commit() {
    graph_.commit();
    done_ = true;
  }

 private:
  Graph& graph_;
  bool done_ = false;
};

class Session {
 public:
  Session(Graph& graph, const RegistrationPtr& registration, const Surroundings& surroundings,
          const SharedOutputs& shared)
      : graph_(graph),
        registration_(registration),
        surroundings_(surroundings),
        shared_(shared),
        context_{registration->descriptor, next_instance_id(), surroundings.options,
                 surroundings.providers, ""} {
    const PassDescriptor& descriptor = registration->descriptor;
    result_.name = descriptor.pass_name;
    result_.version = descriptor.version;
    result_.graph = graph.name();
    result_.stage = descriptor.stage;
    result_.instance_id = context_.instance_id;
  }

  PassResult execute() {
    const auto start = std::chrono::steady_clock::now();
    try {
      run();
    } catch (const SkipPass& skip) {
      result_.outcome = Outcome::kSkipped;
      result_.message = skip.what();
      result_.matches = 0;
    } catch (const FatalFailure& failure) {
      result_.fatal = true;
      fail(failure.what(), BRINGUP_ENGINE_FATAL);
    } catch (const StatusError& failure) {
      fail(failure.what(), failure.status());
    } catch (const EngineError& error) {
      fail(error.what(), status_of(error.code()));
    } catch (const std::exception& error) {
      fail(error.what(), BRINGUP_ENGINE_FAILED);
    } catch (...) {
      fail("it threw something that is no std::exception", BRINGUP_ENGINE_FAILED);
    }
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    result_.seconds = spent.count();
    return std::move(result_);
  }

 private:
  void run() {
    const std::unique_ptr<Pass> instance = make_instance(*registration_);
    Transaction transaction(graph_, registration_->descriptor.pass_name);
    run_hooks(*instance);
    if (!graph_.journal().empty()) settle();
    result_.edits = graph_.journal().size();
    transaction.commit();
    if (result_.edits > 0) result_.outcome = Outcome::kChanged;
  }

  void run_hooks(Pass& instance) {
    switch (registration_->descriptor.kind) {
      case PassKind::kPatternFusion:
        return rewrite_patterns(graph_, instance, context_, result_);
      case PassKind::kDecompose:
        return decompose(graph_, instance, context_, result_);
      case PassKind::kFusionBase:
      case PassKind::kLegacyCustom:
        return run_graph_pass(instance);
    }
  }

  void run_graph_pass(Pass& instance) {
    const int64_t status = instance.run(graph_, context_);
    if (status != 0) {
      throw StatusError(status, "run of " + quoted(registration_->descriptor.pass_name) +
                                    " returned status " + std::to_string(status));
    }
    result_.matches = graph_.journal().empty() ? 0 : 1;
  }

  // What must hold before the edits may stay.
  void settle() {
    if (const std::optional<OrderFailure> failure = put_in_order(graph_)) {
      throw EngineError(ErrorCode::kPass, "the graph cannot be ordered so that " +
                                              quoted(graph_.name_text(failure->node)) +
                                              " has its inputs: " + failure->reason);
    }
    if (surroundings_.providers.settle) surroundings_.providers.settle(graph_);
    for (const auto& [index, node] : shared_outputs(graph_)) {
      if (shared_.contains({index, node})) continue;
      throw EngineError(ErrorCode::kPass, "result " + std::to_string(index) +
                                              " of the graph would share memory with " +
                                              quoted(graph_.name_text(node)) +
                                              ", which it did not before: copy it (aten::clone)");
    }
    if (surroundings_.commit) surroundings_.commit(graph_, graph_.journal());
  }

  void fail(const std::string& what, int64_t status) {
    result_.outcome = Outcome::kFailed;
    result_.error = std::current_exception();
    result_.status = status;
    result_.matches = 0;
    result_.tolerated = registration_->descriptor.policy != Policy::kFail && !result_.fatal;
    const std::string& said = context_.error_message;
    result_.message = said.empty() || said == what ? what : said + " (" + what + ")";
  }

  Graph& graph_;
  const RegistrationPtr registration_;
  const Surroundings& surroundings_;
  const SharedOutputs& shared_;
  PassContext context_;
  PassResult result_;
};

}  // namespace

std::string_view name_of(Outcome outcome) {
  constexpr std::string_view kNames[] = {"unchanged", "changed", "skipped", "failed"};
  return kNames[static_cast<size_t>(outcome)];
}

SharedOutputs shared_outputs(const Graph& graph) {
  const Storages storages(graph, true);
  SharedOutputs shared;
  uint32_t index = 0;
  for (const ValueId value : graph.outputs()) {
    const NodeId root = storages.root(value);
    const Operator* op = &graph.op(root);
    if (op == Operators::input() || op == Operators::constant()) shared.insert({index, root});
    ++index;
  }
  return shared;
}

PassResult run_session(Graph& graph, const RegistrationPtr& registration,
                       const Surroundings& surroundings, const SharedOutputs& shared) {
  return Session(graph, registration, surroundings, shared).execute();
}

}  // namespace bringup::engine
