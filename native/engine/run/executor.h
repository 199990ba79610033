// Running passes over a graph and its subgraphs, stage by stage.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/run/selection.h"
#include "engine/run/session.h"
#include "engine/run/session_host.h"

namespace bringup::engine {

struct Report {
  std::string graph;
  std::vector<PassResult> results;  // in the order they ran
  uint64_t inferred = 0;            // nodes described by the shape inference
  uint64_t folded = 0;              // nodes replaced by constants
  uint64_t removed = 0;             // unread nodes removed by the clean-up
  std::string failure;              // why the run failed; empty: it did not
  int64_t status = 0;               // of the first failure

  bool failed() const { return !failure.empty(); }
};

// Runs `selected`, which are in running order: BEFORE_INFER_SHAPE, shape inference,
// AFTER_INFER_SHAPE, the shipped library (descriptors marked builtin), AFTER_BUILTIN_FUSION_PASS,
// folding and clean-up, AFTER_ORIGIN_GRAPH_OPTIMIZE.
//
// A pass that fails leaves no edit; the others of its stage still run, then the run ends (at once
// after a fatal failure). Edits of passes that succeeded stay. Every pass runs on the graph, then
// on each of its subgraphs at any depth, in a session of its own; one whose required pass failed is
// skipped. What inference and folding throw passes through, but for EngineError.
Report run_passes(RunHost& host, std::span<const RegistrationPtr> selected);

}  // namespace bringup::engine
