// Which results may share memory, with inputs and with each other: no pass may add to these.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph/graph.h"

namespace bringup::engine {

struct SharedOutputs {
  // Position and node: which results may share memory with which input or constant.
  std::set<std::pair<uint32_t, NodeId>> given;
  // For each result the first one that it may share memory with, itself if there is none.
  std::vector<uint32_t> first;
  // For each result the one that stands for all that may lie in its storage, parts of it or not.
  std::vector<uint32_t> storage;
};

// Several views of one argument by one operator (split, unbind) count as not overlapping.
SharedOutputs shared_outputs(const Graph& graph);

// A result that must not stay as it is.
struct NewlyShared {
  std::vector<uint32_t> outputs;  // its position, and those of what lay in one storage with it
  std::string reason;
};

// The first result that shares memory now and did not before.
std::optional<NewlyShared> newly_shared(const Graph& graph, const SharedOutputs& before);

}  // namespace bringup::engine
