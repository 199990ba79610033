// The flow of a session: which step follows which, and what a failure means, whoever is the host.
#include <stdexcept>

#include "check.h"
#include "engine/graph/native_host.h"
#include "engine/run/executor.h"
#include "engine/run/session.h"
#include "engine/util/error.h"

using namespace bringup::engine;

namespace {

// What a test asks of the pass and the host.
struct Script {
  std::string steps;    // that were asked for
  std::string fail_at;  // this one throws
  bool met = true;
  bool copier = false;
  bool returns_input = false;
  bool interrupted = false;
  Verdict::Kind kind = Verdict::Kind::kFailure;

  void note(const std::string& step) {
    steps += step + " ";
    if (step == fail_at) throw std::runtime_error("no luck");
  }
};

Script* script = nullptr;  // of the test that runs

// Replaces demo::a by a graph that is its input.
class Scripted : public Pass {
  bool meet_requirements(Target&, PassContext&) override {
    return script->note("meets"), script->met;
  }
  GraphPtr replacement(Target&, PassContext&) override {
    script->note("make");
    return make_native_graph("replacement");
  }
};

// Notes the steps it is asked for; a replacement changes nothing.
class Noted : public Script, public SessionHost {
 public:
  explicit Noted(size_t candidates) {
    for (size_t i = 0; i < candidates; ++i) {
      Operator facts;
      facts.type = Strings::intern("demo::a");
      graph_->insert(Operators::intern(facts), facts.type, {}, 1, graph_->last());
    }
    script = this;
  }

  Graph& graph() override { return *graph_; }
  const Options& options() const override { return options_; }
  const Providers& providers() const override { return providers_; }
  void begin(uint64_t) override { note("begin"); }
  void settle() override { note("settle"); }
  void commit() override { note("commit"); }
  void rollback() override { note("rollback"); }
  bool can_copy() const override { return copier; }
  Graph::Savepoint savepoint() override { return note("savepoint"), Graph::Savepoint(); }
  void roll_back_to(const Graph::Savepoint&) override { note("undo"); }
  void offer(Target* target) override { note(target == nullptr ? "end" : "offer"); }
  std::vector<NodeId> replace(const Graph&, const Target&, AliasAnalysis&) override {
    note("replace");
    if (!returns_input) return {};
    ArgumentList list;
    list.put(Argument::of_value({graph_->add_input(Strings::intern("x")), 0}));
    graph_->set_outputs({list.items(), list.count()});
    return {};
  }
  void report_rewrite(const std::vector<NodeId>&) override { note("report"); }
  Verdict classify_error(std::exception_ptr error) const override {
    if (interrupted) std::rethrow_exception(error);
    Verdict verdict = SessionHost::classify_error(error);
    verdict.kind = kind;
    return verdict;
  }

 private:
  std::shared_ptr<Graph> graph_ = make_native_graph("g");
  Options options_;
  Providers providers_;
};

RegistrationPtr decompose_pass(Policy policy = Policy::kFail) {
  auto made = std::make_shared<Registration>();
  made->descriptor.pass_name = "P";
  made->descriptor.kind = PassKind::kDecompose;
  made->descriptor.op_types = {"demo::a"};
  made->descriptor.policy = policy;
  made->create = []() -> std::unique_ptr<Pass> { return std::make_unique<Scripted>(); };
  return made;
}

}  // namespace

TEST(candidates_are_rewritten_one_after_the_other_each_behind_a_savepoint) {
  Noted steps(2);
  const PassResult result = run_session(decompose_pass(), steps, {});
  CHECK_EQ(steps.steps,
           "begin offer savepoint meets make replace report offer savepoint meets "
           "make replace report end commit ");
  CHECK_EQ(result.matches, 2u);
}

TEST(candidate_that_a_hook_refuses_is_undone_and_reported_to_the_search) {
  Noted steps(1);
  steps.met = false;
  const PassResult result = run_session(decompose_pass(), steps, {});
  CHECK_EQ(steps.steps, "begin offer savepoint meets undo end commit ");
  CHECK_EQ(result.near_misses.front().reason, "meet_requirements returned False");
  CHECK_EQ(result.refused, 1u);
  CHECK(result.outcome == Outcome::kUnchanged);
}

TEST(result_that_would_be_an_input_is_left_to_who_can_copy_it_and_refused_otherwise) {
  Noted refused(1);
  refused.returns_input = true;
  const PassResult result = run_session(decompose_pass(), refused, {});
  CHECK_EQ(result.refused, 1u);
  CHECK(refused.steps.find("replace undo end") != std::string::npos);
  CHECK(result.near_misses.front().reason.starts_with(
      "result 0 of the graph would share memory with 'x'"));
  Noted copied(1);
  copied.returns_input = copied.copier = true;
  CHECK_EQ(run_session(decompose_pass(), copied, {}).matches, 1u);
  CHECK(copied.steps.find("replace report") != std::string::npos);
}

TEST(policy_skip_undoes_the_candidate_that_failed_alone) {
  Noted steps(2);
  steps.fail_at = "replace";
  const PassResult result = run_session(decompose_pass(Policy::kSkip), steps, {});
  CHECK_EQ(result.failures, 2u);
  CHECK_EQ(result.refused, 2u);
  CHECK(steps.steps.find("replace undo offer") != std::string::npos);
  CHECK_EQ(result.near_misses.front().reason, "failed: no luck");
  CHECK(steps.steps.find("rollback") == std::string::npos);
}

TEST(wrong_rewrite_is_tolerated_by_no_policy) {
  for (const Policy policy : {Policy::kFail, Policy::kSkip, Policy::kRollback}) {
    Noted steps(2);
    steps.fail_at = "replace";
    steps.kind = Verdict::Kind::kWrong;
    const PassResult result = run_session(decompose_pass(policy), steps, {});
    CHECK(result.failed());
    CHECK(!result.fatal);
    CHECK_EQ(steps.steps, "begin offer savepoint meets make replace undo rollback ");
    CHECK_EQ(result.message, "no luck");
  }
}

TEST(what_is_no_failure_of_the_pass_goes_through_after_the_edits_were_undone) {
  Noted steps(1);
  steps.fail_at = "meets";
  steps.interrupted = true;
  CHECK_THROWS(run_session(decompose_pass(Policy::kSkip), steps, {}), std::runtime_error,
               "no luck");
  CHECK_EQ(steps.steps, "begin offer savepoint meets undo rollback ");
}

TEST(failure_of_the_last_step_undoes_the_session) {
  Noted steps(1);
  steps.fail_at = "commit";
  const PassResult result = run_session(decompose_pass(Policy::kRollback), steps, {});
  CHECK(result.outcome == Outcome::kFailed);
  CHECK(result.tolerated);
  CHECK_EQ(result.matches, 0u);
  CHECK(steps.steps.ends_with("commit rollback "));
}
