// Running passes over graphs of the engine: what C and C++ programs do.
#pragma once

#include <memory>
#include <span>

#include "engine/graph/edit.h"
#include "engine/graph/providers.h"
#include "engine/run/executor.h"
#include "engine/run/pass.h"

namespace bringup::engine {

class HostSessions;

struct RunSettings {
  Options options;
  Providers providers;
  Commit commit;                 // not called for subgraphs, which nothing mirrors
  bool infer_shapes = false;     // of what has no description yet, after the first stage
  bool fold = false;             // compute operators on constants once, before the last stage
  HostSessions* host = nullptr;  // opens the passes of the host; needed where one is selected
};

Report run_passes(Graph& graph, std::span<const RegistrationPtr> selected,
                  const RunSettings& settings);

// What sessions of one run have in common. All of it must outlive them.
struct SharedRunState {
  const Options& options;
  const Providers& providers;
  const Commit& commit;
};

// The host of one pass on one graph.
std::unique_ptr<SessionHost> native_session(Graph& graph, const RegistrationPtr& pass,
                                            const SharedRunState& shared_state);

}  // namespace bringup::engine
