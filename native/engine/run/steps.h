// The steps of running passes. `run_passes` and `run_session` decide which comes when, what a
// failure means and what is undone; how a step is done is up to whose graph it is: the engine does
// it on its own graphs (native_run.h), Python on those of bringup.ir.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/match/near_miss.h"
#include "engine/run/creation.h"

namespace bringup::engine {

struct PassResult;

// What an exception means that ended a step.
struct Verdict {
  enum class Kind : uint8_t {
    kSkip,     // of a hook that wants this match, or this graph, left alone
    kFailure,  // the policy of the pass decides
    kWrong,    // a wrong rewrite: no policy tolerates it
    kFatal,    // nor this, and the stage ends
  };
  Kind kind = Kind::kFailure;
  int64_t status = 0;  // of a failure
  std::string text;    // of the exception
};

// One run of one pass on one graph. Every step may throw.
class SessionSteps {
 public:
  virtual ~SessionSteps() = default;

  virtual Graph& graph() = 0;

  // Opens a transaction and makes the instance of the pass.
  virtual void begin(uint64_t instance_id) = 0;
  // A graph pass edits; 0 is success.
  virtual int64_t run() = 0;
  // How many fusions the hooks reported themselves.
  virtual uint64_t fusions() const { return 0; }
  // Sorts an edited graph and makes the host's checks; throws unless the edits may stay.
  virtual void settle() = 0;
  // Whether `copy_output` can be asked for; where nobody makes copies, a match that would let
  // results share memory is left alone.
  virtual bool can_copy() const { return false; }
  // Lets results of the graph lie in a copy of the memory that they are views of, one for all.
  virtual void copy_outputs(const std::vector<uint32_t>& /*outputs*/) {}
  // Repeats the edits on what the graph mirrors and ends the transaction.
  virtual void commit() = 0;
  // Ends the transaction, if one is open, and undoes its edits.
  virtual void rollback() = 0;

  // A pass that is driven by its hooks. How many things it looks for, one after the other.
  virtual size_t prepare() = 0;
  // From here on candidates for number `search`.
  virtual void start(size_t search) = 0;
  // Goes to the next candidate; false when there is none any more. The steps that follow are about
  // this candidate.
  virtual bool next() = 0;
  // Why it cannot be replaced, whatever the hooks say.
  virtual std::optional<std::string> refusal() { return std::nullopt; }
  virtual bool meets_requirements() = 0;
  virtual void make_replacement() = 0;
  virtual void replace() = 0;
  // It was left alone, for this reason.
  virtual void refuse(const std::string& reason) = 0;
  // What came closest since `start`.
  virtual std::optional<NearMiss> near_miss() = 0;
  // A state of the graph, which `rollback_to_savepoint` brings back; `release_savepoint` forgets
  // it.
  virtual void savepoint() = 0;
  virtual void release_savepoint() {}
  virtual void rollback_to_savepoint() = 0;

  // Whether one more rewrite may happen at all; of a graph pass, its run.
  virtual bool may_rewrite() { return true; }
  virtual void report_match() {}
  virtual void report_replacement() {}
  // Throws what is no failure of the pass, such as an interrupt of the user's.
  virtual Verdict classify_error(std::exception_ptr error) const;
  // A failure in words for the result; called once each, when its edits were undone.
  virtual std::string describe(std::exception_ptr error) { return classify_error(error).text; }
  // Where the failure that was described last came from, in the host's language.
  virtual std::string traceback() { return ""; }
};

// A run of several passes over a graph and its subgraphs.
class RunSteps {
 public:
  virtual ~RunSteps() = default;

  // The graph, then the subgraphs at any depth that a node still calls.
  virtual std::vector<Graph*> graphs() = 0;
  virtual std::unique_ptr<SessionSteps> open(Graph& graph, const RegistrationPtr& pass) = 0;
  // Called once for every result, in order.
  virtual void report_result(const PassResult&, const Graph&) {}
  // Between the first two stages, and before the last.
  virtual void infer_shapes() = 0;
  virtual void fold() = 0;
};

}  // namespace bringup::engine
