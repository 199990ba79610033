// The alias analysis of a graph of Python.
#pragma once

#include <optional>

#include "engine/analysis/alias_analysis.h"
#include "engine_handles.h"

namespace bringup::python {

struct AliasAnalysisCore {
  AliasAnalysisCore(GraphCore& core, bool track_views)
      : core(core), track_views(track_views), aliases(std::in_place, core.graph, track_views) {}
  GraphCore& core;
  bool track_views;
  std::optional<en::AliasAnalysis> aliases;

  nanobind::object node(en::NodeId id) {
    return id == en::kNoNode ? nanobind::none() : take(node_handle(core, id));
  }
};

}  // namespace bringup::python
