#include "engine/run/session.h"

#include <atomic>
#include <chrono>

#include "bringup/engine.h"
#include "engine/analysis/alias_analysis.h"
#include "engine/run/targets.h"
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
  Session(const RegistrationPtr& pass, SessionHost& host, const SharedOutputs& shared)
      : pass_(pass),
        descriptor_(pass->descriptor),
        host_(host),
        graph_(host.graph()),
        shared_(shared),
        result_(result_of(descriptor_, graph_)),
        context_{descriptor_, next_instance_id(), host.options(), host.providers()} {
    result_.instance_id = context_.instance_id;
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
    host_.begin(context_.instance_id);
    instance_ = host_.make_instance(*pass_);
    const bool is_driven =
        descriptor_.kind == PassKind::kPatternFusion || descriptor_.kind == PassKind::kDecompose;
    is_driven ? drive() : run_graph_pass();
    if (edits() > 0) settle();
    result_.edits = edits();
    host_.commit();
    if (result_.edits > 0) result_.outcome = Outcome::kChanged;
  }

  size_t edits() const { return graph_.journal().size(); }

  void run_graph_pass() {
    if (!host_.may_rewrite()) throw SkipPass(kBeyondLimit);
    host_.before_run();
    const int64_t status = instance_->run(graph_, context_);
    if (status != 0) {
      throw StatusError(
          status, concat("run of ", in_quotes(descriptor_.pass_name), " returned status ", status));
    }
    host_.after_run();
    result_.matches = std::max<uint64_t>(host_.fusions(), edits() > 0 ? 1 : 0);
  }

  // What must hold before the edits may stay.
  void settle() {
    host_.settle();
    while (std::optional<NewlyShared> found = newly_shared(graph_, shared_)) {
      if (!host_.can_copy()) throw_error(ErrorCode::kPass, std::move(found->reason));
      host_.copy_outputs(found->outputs);
    }
  }

  // Sweeps over what a pattern or decompose pass looks for.
  void drive() {
    aliases_.emplace(graph_);
    targets_ = descriptor_.kind == PassKind::kDecompose
                   ? nodes_of_types(graph_, descriptor_.op_types, *aliases_)
                   : matches_of(graph_, instance_->programs(graph_, context_), *aliases_);
    const size_t searches = targets_->searches();
    most_ = descriptor_.max_rewrites;
    if (most_ == 0 && descriptor_.repeat_until_stable) most_ = 1000 + 10 * graph_.size();
    bool again = true;
    while (again) {
      const uint64_t before = result_.matches;
      result_.near_misses.clear();
      for (size_t search = 0; search < searches && !is_limit_reached(); ++search) sweep(search);
      again = descriptor_.repeat_until_stable && result_.matches != before && !is_limit_reached();
    }
    if (is_limit_reached()) report_limit_reached();
    result_.matches += host_.fusions();
  }

  bool is_limit_reached() const { return most_ != 0 && result_.matches >= most_; }

  void report_limit_reached() {
    if (descriptor_.max_rewrites != 0) {
      result_.message = "stopped after " + std::to_string(most_) + " rewrites (max_rewrites)";
      return;
    }
    throw_error(ErrorCode::kPass, in_quotes(descriptor_.pass_name),
                " does not become stable: after ", most_,
                " rewrites it still finds something to rewrite; does its replacement "
                "hold its own pattern? Give it max_rewrites, or do not repeat it");
  }

  void sweep(size_t search) {
    targets_->start(search);
    while (!is_limit_reached() && next()) {
      if (const std::optional<std::string> reason = attempt()) {
        ++result_.refused;
        targets_->refuse(*reason);
      }
    }
    host_.offer(nullptr);
    if (std::optional<NearMiss> miss = targets_->near_miss()) {
      if (miss->node.empty() && result_.matches > 0) {
        miss->reason += ", after this pass had rewritten " + std::to_string(result_.matches);
      }
      result_.near_misses.push_back(std::move(*miss));
    }
  }

  bool next() {
    if (descriptor_.kind == PassKind::kDecompose) {
      target_ = targets_->next();
    } else {
      host_.search([this] { target_ = targets_->next(); });
    }
    return target_ != nullptr;
  }

  // Rewrites one candidate, all or nothing; the reason if it was left alone.
  std::optional<std::string> attempt() {
    if (std::optional<std::string> reason = targets_->refusal()) return reason;
    host_.offer(target_);
    savepoint_ = host_.savepoint();
    std::vector<NodeId> made;
    try {
      if (std::optional<std::string> reason = rewrite(made)) {
        undo();
        return reason;
      }
    } catch (...) {
      return leave(std::current_exception());
    }
    ++result_.matches;
    host_.report_rewrite(made);
    return std::nullopt;
  }

  std::optional<std::string> rewrite(std::vector<NodeId>& made) {
    if (!instance_->meet_requirements(*target_, context_)) {
      return "meet_requirements returned False";
    }
    const GraphPtr replacement = instance_->replacement(*target_, context_);
    if (replacement == nullptr) {
      throw_error(ErrorCode::kPass, "the replacement of ", name_of(*target_), " is no graph");
    }
    if (!host_.may_rewrite()) return kBeyondLimit;
    made = host_.replace(*replacement, *target_, *aliases_);
    return reason_to_copy();
  }

  std::string name_of(const Target& target) const {
    return target.is_match() ? "a match of " + in_quotes(target.pattern_name())
                             : in_quotes(graph_.name_text(target.node()));
  }

  void undo() {
    const bool was_edited = edits() != savepoint_.edits;
    host_.roll_back_to(savepoint_);
    if (was_edited) aliases_.emplace(graph_);
  }

  // Why the match cannot stay where the host cannot copy; a copy is made once all is settled.
  std::optional<std::string> reason_to_copy() {
    if (host_.can_copy()) return std::nullopt;
    std::optional<NewlyShared> found = newly_shared(graph_, shared_);
    return found ? std::optional(std::move(found->reason)) : std::nullopt;
  }

  // Undoes the candidate that failed, where it may be left alone, and says why; else throws.
  std::string leave(std::exception_ptr error) {
    undo();
    const Verdict verdict = host_.classify_error(error);
    if (verdict.kind == Verdict::Kind::kSkip) return "skipped: " + verdict.text;
    if (descriptor_.policy != Policy::kSkip || verdict.kind != Verdict::Kind::kFailure) {
      std::rethrow_exception(error);
    }
    ++result_.failures;
    return "failed: " + host_.describe(error);
  }

  void end(std::exception_ptr error) {
    host_.rollback();
    result_.edits = 0;
    const Verdict verdict = host_.classify_error(error);
    result_.matches = 0;
    if (verdict.kind == Verdict::Kind::kSkip) {
      result_.outcome = Outcome::kSkipped;
      result_.message = verdict.text;
      return;
    }
    result_.outcome = Outcome::kFailed;
    result_.status = verdict.status;
    result_.fatal = verdict.kind == Verdict::Kind::kFatal;
    result_.tolerated =
        descriptor_.policy != Policy::kFail && verdict.kind == Verdict::Kind::kFailure;
    result_.message = host_.describe(error);
    result_.traceback = host_.traceback();
  }

  const RegistrationPtr pass_;
  const PassDescriptor& descriptor_;
  SessionHost& host_;
  Graph& graph_;
  const SharedOutputs& shared_;
  PassResult result_;
  PassContext context_;
  std::unique_ptr<Pass> instance_;
  std::optional<AliasAnalysis> aliases_;
  std::unique_ptr<Targets> targets_;
  Target* target_ = nullptr;  // the candidate
  Graph::Savepoint savepoint_;
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

Verdict SessionHost::classify_error(std::exception_ptr error) const {
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

std::vector<NodeId> SessionHost::replace(const Graph& replacement, const Target& target,
                                         AliasAnalysis& aliases) {
  const Boundary::Part part = target.part(replacement.outputs().size());
  return engine::replace(graph(), replacement, part, aliases, providers());
}

PassResult run_session(const RegistrationPtr& pass, SessionHost& host,
                       const SharedOutputs& shared) {
  return Session(pass, host, shared).execute();
}

}  // namespace bringup::engine
