// The flow of a session: which step follows which, and what a failure means, whoever does the
// steps.
#include <stdexcept>

#include "check.h"
#include "engine/graph/native_host.h"
#include "engine/run/executor.h"
#include "engine/run/session.h"
#include "engine/util/error.h"

using namespace bringup::engine;

namespace {

// Notes the steps it is asked for; `fail_at` throws what `error` makes.
class Noted : public SessionSteps {
 public:
  explicit Noted(size_t candidates) : candidates_(candidates) {}

  Graph& graph() override { return *graph_; }
  void begin(uint64_t) override { note("begin"); }
  int64_t run() override { return note("run"), 0; }
  void settle() override { note("settle"); }
  void commit() override { note("commit"); }
  void rollback() override { note("rollback"); }
  size_t prepare() override { return note("prepare"), 1; }
  void start(size_t) override { note("start"), left_ = candidates_; }
  bool can_copy() const override { return copier; }
  bool next() override { return note("next"), left_-- > 0; }
  bool meets_requirements() override { return note("meets"), met; }
  void make_replacement() override { note("make"); }
  void replace() override {
    note("replace");
    if (!returns_input) return;
    ArgumentList list;
    list.put(Argument::of_value({graph_->add_input(Strings::intern("x")), 0}));
    graph_->set_outputs({list.items(), list.count()});
  }
  void refuse(const std::string& reason) override { note("refuse(" + reason + ")"); }
  std::optional<NearMiss> near_miss() override { return std::nullopt; }
  void savepoint() override { note("savepoint"); }
  void release_savepoint() override { note("release"); }
  void rollback_to_savepoint() override { note("undo"); }
  Verdict classify_error(std::exception_ptr error) const override {
    if (interrupted) std::rethrow_exception(error);
    Verdict verdict = SessionSteps::classify_error(error);
    verdict.kind = kind;
    return verdict;
  }

  std::string steps;
  std::string fail_at;
  bool met = true;
  bool copier = false;
  bool returns_input = false;
  bool interrupted = false;
  Verdict::Kind kind = Verdict::Kind::kFailure;

 private:
  void note(const std::string& step) {
    steps += step + " ";
    if (step == fail_at) throw std::runtime_error("no luck");
  }

  std::shared_ptr<Graph> graph_ = make_native_graph("g");
  size_t candidates_;
  size_t left_ = 0;
};

PassDescriptor pattern_pass(Policy policy = Policy::kFail) {
  PassDescriptor descriptor;
  descriptor.pass_name = "P";
  descriptor.kind = PassKind::kPatternFusion;
  descriptor.policy = policy;
  return descriptor;
}

}  // namespace

TEST(candidates_are_rewritten_one_after_the_other_each_behind_a_savepoint) {
  Noted steps(2);
  const PassResult result = run_session(pattern_pass(), steps, {});
  CHECK_EQ(steps.steps,
           "begin prepare start next savepoint meets make replace release next savepoint meets "
           "make replace release next commit ");
  CHECK_EQ(result.matches, 2u);
}

TEST(candidate_that_a_hook_refuses_is_undone_and_reported_to_the_search) {
  Noted steps(1);
  steps.met = false;
  const PassResult result = run_session(pattern_pass(), steps, {});
  CHECK_EQ(
      steps.steps,
      "begin prepare start next savepoint meets undo refuse(meet_requirements returned False) next "
      "commit ");
  CHECK_EQ(result.refused, 1u);
  CHECK(result.outcome == Outcome::kUnchanged);
}

TEST(result_that_would_be_an_input_is_left_to_who_can_copy_it_and_refused_otherwise) {
  Noted refused(1);
  refused.returns_input = true;
  CHECK_EQ(run_session(pattern_pass(), refused, {}).refused, 1u);
  CHECK(
      refused.steps.find("replace undo refuse(result 0 of the graph would share memory with 'x'") !=
      std::string::npos);
  Noted copied(1);
  copied.returns_input = copied.copier = true;
  CHECK_EQ(run_session(pattern_pass(), copied, {}).matches, 1u);
  CHECK(copied.steps.find("replace release") != std::string::npos);
}

TEST(policy_skip_undoes_the_candidate_that_failed_alone) {
  Noted steps(2);
  steps.fail_at = "replace";
  const PassResult result = run_session(pattern_pass(Policy::kSkip), steps, {});
  CHECK_EQ(result.failures, 2u);
  CHECK_EQ(result.refused, 2u);
  CHECK(steps.steps.find("replace undo refuse(failed: no luck) next") != std::string::npos);
  CHECK(steps.steps.find("rollback") == std::string::npos);
}

TEST(wrong_rewrite_is_tolerated_by_no_policy) {
  for (const Policy policy : {Policy::kFail, Policy::kSkip, Policy::kRollback}) {
    Noted steps(2);
    steps.fail_at = "replace";
    steps.kind = Verdict::Kind::kWrong;
    const PassResult result = run_session(pattern_pass(policy), steps, {});
    CHECK(result.failed());
    CHECK(!result.fatal);
    CHECK_EQ(steps.steps, "begin prepare start next savepoint meets make replace undo rollback ");
    CHECK_EQ(result.message, "no luck");
  }
}

TEST(what_is_no_failure_of_the_pass_goes_through_after_the_edits_were_undone) {
  Noted steps(1);
  steps.fail_at = "meets";
  steps.interrupted = true;
  CHECK_THROWS(run_session(pattern_pass(Policy::kSkip), steps, {}), std::runtime_error, "no luck");
  CHECK_EQ(steps.steps, "begin prepare start next savepoint meets undo rollback ");
}

TEST(failure_of_the_last_step_undoes_the_session) {
  Noted steps(1);
  steps.fail_at = "commit";
  const PassResult result = run_session(pattern_pass(Policy::kRollback), steps, {});
  CHECK(result.outcome == Outcome::kFailed);
  CHECK(result.tolerated);
  CHECK_EQ(result.matches, 0u);
  CHECK(steps.steps.ends_with("commit rollback "));
}
