#include "engine/run/session.h"

#include <atomic>
#include <chrono>

#include "bringup/engine.h"
#include "engine/run/pass.h"
#include "engine/run/status.h"
#include "engine/util/error.h"

namespace bringup::engine {
namespace {

uint64_t next_instance_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

constexpr const char* kBeyondLimit = "beyond the limit of rewrites";

class Session {
 public:
  Session(const PassDescriptor& descriptor, SessionSteps& steps, const SharedOutputs& shared)
      : descriptor_(descriptor),
        steps_(steps),
        shared_(shared),
        result_(result_of(descriptor, steps.graph())) {
    result_.instance_id = next_instance_id();
  }

  PassResult execute() {
    const auto start = std::chrono::steady_clock::now();
    try {
      run();
    } catch (...) {
      end(std::current_exception());
    }
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    result_.seconds = spent.count();
    return std::move(result_);
  }

 private:
  void run() {
    steps_.begin(result_.instance_id);
    const bool is_driven =
        descriptor_.kind == PassKind::kPatternFusion || descriptor_.kind == PassKind::kDecompose;
    is_driven ? drive() : run_graph_pass();
    if (edits() > 0) settle();
    result_.edits = edits();
    steps_.commit();
    if (result_.edits > 0) result_.outcome = Outcome::kChanged;
  }

  size_t edits() const { return steps_.graph().journal().size(); }

  void run_graph_pass() {
    if (!steps_.may_rewrite()) throw SkipPass(kBeyondLimit);
    const int64_t status = steps_.run();
    if (status != 0) {
      throw StatusError(status, "run of " + quoted(descriptor_.pass_name) + " returned status " +
                                    std::to_string(status));
    }
    result_.matches = std::max<uint64_t>(steps_.fusions(), edits() > 0 ? 1 : 0);
  }

  // What must hold before the edits may stay.
  void settle() {
    steps_.settle();
    while (std::optional<NewlyShared> found = newly_shared(steps_.graph(), shared_)) {
      if (!steps_.can_copy()) throw EngineError(ErrorCode::kPass, std::move(found->reason));
      steps_.copy_outputs(found->outputs);
    }
  }

  // Sweeps over what a pattern or decompose pass looks for.
  void drive() {
    const size_t searches = steps_.prepare();
    most_ = descriptor_.max_rewrites;
    if (most_ == 0 && descriptor_.repeat_until_stable) most_ = 1000 + 10 * steps_.graph().size();
    bool again = true;
    while (again) {
      const uint64_t before = result_.matches;
      result_.near_misses.clear();
      for (size_t search = 0; search < searches && !is_limit_reached(); ++search) sweep(search);
      again = descriptor_.repeat_until_stable && result_.matches != before && !is_limit_reached();
    }
    if (is_limit_reached()) report_limit_reached();
    result_.matches += steps_.fusions();
  }

  bool is_limit_reached() const { return most_ != 0 && result_.matches >= most_; }

  void report_limit_reached() {
    if (descriptor_.max_rewrites != 0) {
      result_.message = "stopped after " + std::to_string(most_) + " rewrites (max_rewrites)";
      return;
    }
    throw EngineError(ErrorCode::kPass,
                      quoted(descriptor_.pass_name) + " does not become stable: after " +
                          std::to_string(most_) +
                          " rewrites it still finds something to rewrite; does its replacement "
                          "hold its own pattern? Give it max_rewrites, or do not repeat it");
  }

  void sweep(size_t search) {
    steps_.start(search);
    while (!is_limit_reached() && steps_.next()) {
      if (const std::optional<std::string> reason = attempt()) {
        ++result_.refused;
        steps_.refuse(*reason);
      }
    }
    if (std::optional<NearMiss> miss = steps_.near_miss()) {
      if (miss->node.empty() && result_.matches > 0) {
        miss->reason += ", after this pass had rewritten " + std::to_string(result_.matches);
      }
      result_.near_misses.push_back(std::move(*miss));
    }
  }

  // Rewrites one candidate, all or nothing; the reason if it was left alone.
  std::optional<std::string> attempt() {
    if (std::optional<std::string> reason = steps_.refusal()) return reason;
    steps_.report_match();
    steps_.savepoint();
    try {
      if (std::optional<std::string> reason = rewrite()) {
        steps_.rollback_to_savepoint();
        return reason;
      }
    } catch (...) {
      return leave(std::current_exception());
    }
    steps_.release_savepoint();
    ++result_.matches;
    steps_.report_replacement();
    return std::nullopt;
  }

  std::optional<std::string> rewrite() {
    if (!steps_.meets_requirements()) return "meet_requirements returned False";
    steps_.make_replacement();
    if (!steps_.may_rewrite()) return kBeyondLimit;
    steps_.replace();
    return reason_to_copy();
  }

  // Why the match cannot stay without a copy that nobody makes; a copy is made once all is settled.
  std::optional<std::string> reason_to_copy() {
    if (steps_.can_copy()) return std::nullopt;
    std::optional<NewlyShared> found = newly_shared(steps_.graph(), shared_);
    return found ? std::optional(std::move(found->reason)) : std::nullopt;
  }

  // Undoes the candidate that failed, where it may be left alone, and says why; else throws.
  std::string leave(std::exception_ptr error) {
    steps_.rollback_to_savepoint();
    const Verdict verdict = steps_.classify_error(error);
    if (verdict.kind == Verdict::Kind::kSkip) return "skipped: " + verdict.text;
    if (descriptor_.policy != Policy::kSkip || verdict.kind != Verdict::Kind::kFailure) {
      std::rethrow_exception(error);
    }
    ++result_.failures;
    return "failed: " + steps_.describe(error);
  }

  void end(std::exception_ptr error) {
    steps_.rollback();
    result_.edits = 0;
    const Verdict verdict = steps_.classify_error(error);
    result_.matches = 0;
    if (verdict.kind == Verdict::Kind::kSkip) {
      result_.outcome = Outcome::kSkipped;
      result_.message = verdict.text;
      return;
    }
    result_.outcome = Outcome::kFailed;
    result_.error = error;
    result_.status = verdict.status;
    result_.fatal = verdict.kind == Verdict::Kind::kFatal;
    result_.tolerated =
        descriptor_.policy != Policy::kFail && verdict.kind == Verdict::Kind::kFailure;
    result_.message = steps_.describe(error);
    result_.traceback = steps_.traceback();
  }

  const PassDescriptor& descriptor_;
  SessionSteps& steps_;
  const SharedOutputs& shared_;
  PassResult result_;
  uint64_t most_ = 0;  // rewrites that may happen; 0: any number
};

}  // namespace

std::string_view name_of(Outcome outcome) {
  constexpr std::string_view kNames[] = {"unchanged", "changed", "skipped", "failed"};
  return kNames[static_cast<size_t>(outcome)];
}

PassResult result_of(const PassDescriptor& descriptor, const Graph& graph) {
  PassResult result;
  result.name = descriptor.pass_name;
  result.version = descriptor.version;
  result.stage = descriptor.stage;
  result.graph = graph.name();
  return result;
}

Verdict SessionSteps::classify_error(std::exception_ptr error) const {
  using Kind = Verdict::Kind;
  try {
    std::rethrow_exception(error);
  } catch (const SkipPass& skip) {
    return {Kind::kSkip, 0, skip.what()};
  } catch (const FatalFailure& failure) {
    return {Kind::kFatal, BRINGUP_ENGINE_FATAL, failure.what()};
  } catch (const StatusError& failure) {
    return {Kind::kFailure, failure.status(), failure.what()};
  } catch (const EngineError& failure) {
    return {Kind::kFailure, status_of(failure.code()), failure.what()};
  } catch (const std::exception& failure) {
    return {Kind::kFailure, BRINGUP_ENGINE_FAILED, failure.what()};
  } catch (...) {
    return {Kind::kFailure, BRINGUP_ENGINE_FAILED, "it threw something that is no std::exception"};
  }
}

PassResult run_session(const PassDescriptor& descriptor, SessionSteps& steps,
                       const SharedOutputs& shared) {
  return Session(descriptor, steps, shared).execute();
}

}  // namespace bringup::engine
