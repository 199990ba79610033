// Whose graphs passes run over. `run_passes` and `run_session` decide what comes when and what a
// failure means, and call the hooks (pass.h); a host has the graph: the engine of its own
// (native_run.h), Python of bringup.ir's and, while its passes run, of those of C++ programs.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/run/creation.h"
#include "engine/run/pass.h"
#include "engine/run/targets.h"

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

// One run of one pass on one graph. Everything but what is const may throw.
class SessionHost {
 public:
  virtual ~SessionHost() = default;

  virtual Graph& graph() = 0;
  // What hooks may read and ask.
  virtual const Options& options() const = 0;
  virtual const Providers& providers() const = 0;

  virtual void begin(uint64_t instance_id) = 0;  // opens a transaction
  virtual std::unique_ptr<Pass> make_instance(const Registration& pass) {
    return engine::make_instance(pass);
  }
  // Sorts an edited graph and makes the host's checks; throws unless the edits may stay.
  virtual void settle() = 0;
  // Whether `copy_outputs` can be asked for; else matches that would share results are left.
  virtual bool can_copy() const { return false; }
  // Lets results of the graph lie in a copy of the memory that they are views of, one for all.
  virtual void copy_outputs(const std::vector<uint32_t>& /*outputs*/) {}
  // Repeats the edits on what the graph mirrors and ends the transaction.
  virtual void commit() = 0;
  // Ends the transaction, if one is open, and undoes its edits.
  virtual void rollback() = 0;
  // A state of the graph within the transaction, and going back to the one made last.
  virtual Graph::Savepoint savepoint() { return graph().savepoint(); }
  virtual void roll_back_to(const Graph::Savepoint& savepoint) { graph().rollback_to(savepoint); }

  // Around a graph pass, and how many fusions its hook reported itself.
  virtual void before_run() {}
  virtual void after_run() {}
  virtual uint64_t fusions() const { return 0; }

  // Runs a search for a match, which may ask the host.
  virtual void search(const std::function<void()>& work) { work(); }
  // A candidate is about to be offered to the hooks; null: the search is over.
  virtual void offer(Target* /*target*/) {}
  // Whether one more rewrite may happen at all; of a graph pass, its run.
  virtual bool may_rewrite() { return true; }
  // Puts what a hook gave where the candidate is; returns the new nodes.
  virtual std::vector<NodeId> replace(const Graph& replacement, const Target& target,
                                      AliasAnalysis& aliases);
  virtual void report_rewrite(const std::vector<NodeId>& /*made*/) {}

  // Throws what is no failure of the pass, such as an interrupt of the user's.
  virtual Verdict classify_error(std::exception_ptr error) const;
  // A failure in words for the result; called once each, when its edits were undone.
  virtual std::string describe(std::exception_ptr error) { return classify_error(error).text; }
  // Where the failure that was described last came from, in the host's language.
  virtual std::string traceback() { return ""; }
};

// A run of several passes over a graph and its subgraphs.
class RunHost {
 public:
  virtual ~RunHost() = default;

  // The graph, then the subgraphs at any depth that a node still calls.
  virtual std::vector<Graph*> graphs() = 0;
  virtual std::unique_ptr<SessionHost> open(Graph& graph, const RegistrationPtr& pass) = 0;
  // Called once for every result, in order.
  virtual void report_result(const PassResult&, const Graph&) {}
  // Between the first two stages, and before the last.
  virtual void infer_shapes() = 0;
  virtual void fold() = 0;
};

}  // namespace bringup::engine
