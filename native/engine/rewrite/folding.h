// The engine's own steps between the stages: shape inference, folding constants, clean-up.
#pragma once

#include <cstdint>

#include "engine/graph/edit.h"
#include "engine/graph/graph.h"
#include "engine/graph/providers.h"

namespace bringup::engine {

// All or nothing each; return how many nodes were concerned. EngineError naming the node when a
// provider refuses, or the provider when there is none.

// Describes the outputs of every node that are not described yet, in graph order.
uint64_t infer_shapes(Graph& graph, const Providers& providers);

// Replaces every operator whose inputs are constants with known data by the constant it computes.
// What shares memory with a result of the graph, or is written in it, is left alone.
uint64_t fold_constants(Graph& graph, const Providers& providers, const Commit& commit);

// Removes pure nodes that nobody reads.
uint64_t remove_unread(Graph& graph, const Commit& commit);

}  // namespace bringup::engine
