// One pass on one graph of the engine, step by step.
#include <algorithm>

#include "engine/analysis/alias_analysis.h"
#include "engine/analysis/order.h"
#include "engine/match/found_match.h"
#include "engine/rewrite/rewriter.h"
#include "engine/run/decompose_targets.h"
#include "engine/run/native_run.h"
#include "engine/util/error.h"

namespace bringup::engine {
namespace {

// What is common to the kinds of passes; by itself, a graph pass.
class NativeSession : public SessionSteps {
 public:
  NativeSession(Graph& graph, const RegistrationPtr& pass, const SharedRunState& shared_state)
      : graph_(graph),
        pass_(pass),
        shared_state_(shared_state),
        context_{pass->descriptor, 0, shared_state.options, shared_state.providers, ""} {}

  Graph& graph() override { return graph_; }

  void begin(uint64_t instance_id) override {
    context_.instance_id = instance_id;
    instance_ = make_instance(*pass_);
    graph_.begin(Strings::intern(pass_->descriptor.pass_name));
    is_open_ = true;
  }

  int64_t run() override { return instance_->run(graph_, context_); }

  void settle() override {
    if (const std::optional<OrderFailure> failure = topological_sort(graph_)) {
      throw EngineError(ErrorCode::kPass, "the graph cannot be ordered so that " +
                                              quoted(graph_.name_text(failure->node)) +
                                              " has its inputs: " + failure->reason);
    }
    if (shared_state_.providers.settle) shared_state_.providers.settle(graph_);
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

  size_t prepare() override { return 0; }
  void start(size_t) override {}
  bool next() override { return false; }
  bool meets_requirements() override { return false; }
  void make_replacement() override {}
  void replace() override {}
  void refuse(const std::string&) override {}
  std::optional<NearMiss> near_miss() override { return std::nullopt; }

  void savepoint() override { savepoint_ = graph_.savepoint(); }

  void rollback_to_savepoint() override {
    const bool was_edited = graph_.journal().size() != savepoint_.edits;
    graph_.rollback_to(savepoint_);
    if (was_edited) aliases_.emplace(graph_);
  }

  std::string describe(std::exception_ptr error) override {
    const std::string what = classify_error(error).text;
    const std::string& said = context_.error_message;
    return said.empty() || said == what ? what : said + " (" + what + ")";
  }

 protected:
  // Keeps what a hook gave, unless that is nothing.
  void take(GraphPtr replacement, std::string_view what, std::string_view name) {
    if (replacement == nullptr) {
      throw EngineError(ErrorCode::kPass,
                        "the replacement of " + std::string(what) + quoted(name) + " is no graph");
    }
    replacement_ = std::move(replacement);
  }

  void put(const Site& site) {
    engine::replace(graph_, *replacement_, site, *aliases_, shared_state_.providers);
  }

  Graph& graph_;
  const RegistrationPtr pass_;
  const SharedRunState shared_state_;
  PassContext context_;
  std::unique_ptr<Pass> instance_;
  std::optional<AliasAnalysis> aliases_;
  GraphPtr replacement_;

 private:
  bool is_open_ = false;
  Graph::Savepoint savepoint_;
};

class PatternSession : public NativeSession {
 public:
  using NativeSession::NativeSession;

  size_t prepare() override {
    aliases_.emplace(graph_);
    for (const PatternPtr& pattern : instance_->patterns(graph_, context_)) {
      programs_.push_back(Program::compile(pattern));
    }
    return programs_.size();
  }

  void start(size_t search) override {
    program_ = programs_[search];
    matcher_.emplace(program_, graph_, *aliases_);
  }

  bool next() override {
    match_.reset();
    std::optional<Candidate> found = matcher_->next();
    if (!found) return false;
    match_.emplace(graph_, *program_, *found);
    last_ = found->nodes.back();
    before_ = found->before;
    hoist_ = found->hoist;
    return true;
  }

  bool meets_requirements() override { return instance_->meet_requirements(*match_, context_); }

  void make_replacement() override {
    take(instance_->replacement(*match_, context_), "a match of ", match_->pattern_name());
  }

  void replace() override {
    const std::vector<ValueId> inputs = match_->inputs();
    const std::vector<NodeId> nodes = match_->nodes();
    for (const NodeId node : hoist_) graph_.move_before(node, before_);
    put(Site{inputs, match_->outputs(), nodes, before_});
  }

  void refuse(const std::string& reason) override {
    if (graph_.alive(last_)) matcher_->refuse(last_, reason);
  }

  std::optional<NearMiss> near_miss() override { return matcher_->near_miss(); }

 private:
  std::vector<std::shared_ptr<const Program>> programs_;
  std::shared_ptr<const Program> program_;
  std::optional<Matcher> matcher_;
  std::optional<FoundMatch> match_;
  NodeId last_ = kNoNode;
  NodeId before_ = kNoNode;
  std::vector<NodeId> hoist_;
};

class DecomposeSession : public NativeSession {
 public:
  using NativeSession::NativeSession;

  size_t prepare() override {
    aliases_.emplace(graph_);
    targets_.emplace(graph_, context_.descriptor.op_types);
    return 1;
  }

  void start(size_t) override { targets_->start(); }
  bool next() override { return targets_->next(); }
  std::optional<std::string> refusal() override { return targets_->refusal(*aliases_); }

  bool meets_requirements() override {
    return instance_->meet_requirements(graph_, targets_->node(), context_);
  }

  void make_replacement() override {
    const NodeId node = targets_->node();
    take(instance_->replacement(graph_, node, context_), "", graph_.name_text(node));
  }

  void replace() override {
    const NodeId node = targets_->node();
    const std::vector<ValueId> inputs = values_read(graph_, node);
    const std::vector<ValueId> outputs =
        values_computed(graph_, node, replacement_->outputs().size());
    put(Site{inputs, outputs, {&node, 1}, node});
  }

  void refuse(const std::string& reason) override { targets_->refuse(reason); }
  std::optional<NearMiss> near_miss() override { return targets_->near_miss(); }

 private:
  std::optional<DecomposeTargets> targets_;
};

}  // namespace

std::unique_ptr<SessionSteps> native_session(Graph& graph, const RegistrationPtr& pass,
                                             const SharedRunState& shared_state) {
  switch (pass->descriptor.kind) {
    case PassKind::kPatternFusion:
      return std::make_unique<PatternSession>(graph, pass, shared_state);
    case PassKind::kDecompose:
      return std::make_unique<DecomposeSession>(graph, pass, shared_state);
    case PassKind::kFusionBase:
    case PassKind::kLegacyCustom:
      break;
  }
  return std::make_unique<NativeSession>(graph, pass, shared_state);
}

}  // namespace bringup::engine
