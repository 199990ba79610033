// The engine's own steps between the stages: shape inference, folding constants, clean-up.
#pragma once

#include <cstdint>

#include "engine/graph/edit.h"
#include "engine/graph/graph.h"
#include "engine/graph/providers.h"

namespace bringup::engine {

// Who computes nodes while constants are folded, and keeps what they give.
class FoldingSteps {
 public:
  virtual ~FoldingSteps() = default;
  virtual bool has_data(NodeId constant) = 0;
  virtual bool can_fold(NodeId node) = 0;
  // Computes a node; returns how many results it gave, which are kept until the folding ends.
  virtual size_t evaluate(NodeId node) = 0;
  // Whether `evaluate` finds its inputs in constants of the graph, not in what it has kept.
  virtual bool reads_graph() const = 0;
  // A new constant that holds what `evaluate` gave for this output.
  virtual NodeId add_constant(ValueId output, StringId base) = 0;
};

// Replaces every pure operator whose inputs are constants with data by the constants it computes;
// returns how many are gone. What shares memory with a result of the graph, or is written in it, is
// left alone: each call must return memory of its own. Throws what the steps throw, and EngineError
// naming a node that gave another number of results than it has outputs.
uint64_t fold_constants(Graph& graph, FoldingSteps& steps);

// All or nothing each; return the number of nodes. EngineError names the node or lacking provider.

// Describes the outputs of every node that are not described yet, in graph order.
uint64_t infer_shapes(Graph& graph, const Providers& providers);

uint64_t fold_constants(Graph& graph, const Providers& providers, const Commit& commit);

// Removes pure nodes that are not read.
uint64_t remove_unread(Graph& graph, const Commit& commit);

}  // namespace bringup::engine
