// One run of one pass on one graph, with one fresh instance, all or nothing.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/analysis/shared_outputs.h"
#include "engine/graph/graph.h"
#include "engine/match/near_miss.h"
#include "engine/run/descriptor.h"
#include "engine/run/session_host.h"

namespace bringup::engine {

enum class Outcome : uint8_t { kUnchanged, kChanged, kSkipped, kFailed };
std::string_view name_of(Outcome outcome);

struct PassResult {
  std::string name;
  std::string version;
  std::string graph;
  Stage stage = Stage::kBeforeInferShape;
  Outcome outcome = Outcome::kUnchanged;
  uint64_t matches = 0;   // rewritten; of a graph pass: 1 when it edited anything
  uint64_t refused = 0;   // by a hook
  uint64_t failures = 0;  // matches that failed and were left alone (policy `skip`)
  uint64_t edits = 0;
  uint64_t instance_id = 0;
  int64_t status = 0;      // of a failure: what the hook returned, or a bringup_engine_status
  bool fatal = false;      // the stage ends here
  bool tolerated = false;  // it failed, but its policy lets the run go on
  double seconds = 0;
  std::string message;    // why it was skipped or failed, or stopped early
  std::string traceback;  // of a failure in another language
  std::vector<NearMiss> near_misses;

  bool failed() const { return outcome == Outcome::kFailed && !tolerated; }
};

// A result before anything happened.
PassResult result_of(const PassDescriptor& descriptor, const Graph& graph);

// A status other than success that `run` returned; the message is that of the context.
class StatusError : public std::exception {
 public:
  StatusError(int64_t status, std::string message)
      : status_(status), message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  int64_t status() const noexcept { return status_; }

 private:
  int64_t status_;
  std::string message_;
};

// Runs the pass. Its edits stay only when it succeeds: it ran, the host agrees, and no results
// share memory that did not in `shared`. Every failure becomes part of the result; an error that
// the host does not count as one is thrown.
//
// One sweep visits the candidates that were there when it began, so a replacement that holds its
// own pattern ends; sweeps are repeated where the pass asks for it, up to a bound.
//
// Runs on the calling thread, on which all hooks are called, one after the other. Sessions on
// different graphs may run in parallel; a second one on the same graph fails.
PassResult run_session(const RegistrationPtr& pass, SessionHost& host, const SharedOutputs& shared);

}  // namespace bringup::engine
